# server.sh: build the extension, run it in servers of our own. For the second life only (see stage.sh).
# shellcheck shell=bash

bindir=$("$PG_CONFIG" --bindir)
pgxs=$(dirname "$("$PG_CONFIG" --pgxs)")/../..         # pg_regress, isolationtester and the Perl modules live there
clusters=$RATCHET_WORK/clusters
sockets=$RATCHET_WORK/sockets
server_conf=$RATCHET_WORK/server.conf                   # what makes a server find our build
password=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')  # other users of the machine can reach our ports
PATH=$bindir:$PATH

# Installs into a folder of our own: Debian's servers have a setting for that. It does not cover plain names in
# shared_preload_libraries, hence dynamic_library_path. A server without that setting must be one of ours, built for tests.
build() {   # build LOG [PROFILE]
    local options=(-s -C "$root" with_llvm=no "PROFILE=${2:-}")
    : >"$server_conf"
    make "${options[@]}" -j"$(nproc)" >"$1" 2>&1 || return
    if [[ $(postgres --describe-config) == *$'\n'extension_destdir$'\t'* ]]; then
        options+=("DESTDIR=$RATCHET_WORK/dest")
        printf '%s\n' "extension_destdir = '$RATCHET_WORK/dest'" \
            "dynamic_library_path = '$RATCHET_WORK/dest$("$PG_CONFIG" --pkglibdir):\$libdir'" >"$server_conf"
    elif [[ $bindir == /usr/* ]]; then
        die "$bindir is not a server that tests may install into"
    fi
    make "${options[@]}" install >>"$1" 2>&1
}

# The kinds of server a suite can choose from.
cluster_settings() {
    case $1 in
        plain) ;;
        # The cases perform duties by hand and look at what one of them did: no worker may be faster.
        preload) printf '%s\n' "shared_preload_libraries = 'ratchet'" "ratchet.databases = ''" ;;
        cron) printf '%s\n' "shared_preload_libraries = 'ratchet, pg_cron'" "cron.use_background_workers = on" ;;
        *) die "no such kind of server: $1" ;;
    esac
}

use_cluster() {     # use_cluster KIND: start it if need be, and point PG* at it
    local dir=$clusters/$1
    export PGHOST=$sockets PGPORT PGUSER=postgres PGPASSWORD=$password PGDATABASE=postgres
    if [[ ! -d $dir ]]; then start_cluster "$1" "$dir"; fi
    PGPORT=$(sed -n 4p "$dir/postmaster.pid")
}

start_cluster() {   # start_cluster KIND DIR
    mkdir -p "$clusters" "$sockets"
    initdb -D "$2" -U postgres --auth-local=trust --auth-host=scram-sha-256 --pwfile=<(echo "$password") --no-sync \
        --locale=C.UTF-8 -E UTF8 --no-instructions >"$2.initdb" 2>&1 || { cat "$2.initdb" >&2; die "initdb failed"; }
    {
        cat "$server_conf"
        cluster_settings "$1"
        printf '%s\n' "listen_addresses = '127.0.0.1'" "unix_socket_directories = '$sockets'" "port = $(free_port)" \
            "fsync = off" "timezone = 'UTC'" "max_prepared_transactions = 10" "log_line_prefix = '%m [%p] %b %q%a '"
    } >>"$2/postgresql.conf"
    pg_ctl -D "$2" -l "$2.log" -w start >/dev/null || { cat "$2.log" >&2; die "server $1 does not start"; }
}

free_port() {       # below the range that the kernel hands out to clients
    local port
    while port=$((20000 + RANDOM % 10000)); (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do :; done
    echo "$port"
}

fresh_database() {  # fresh_database NAME EXTENSION...
    local extension
    createdb "$1"
    export PGDATABASE=$1
    shift
    for extension; do psql -Xqc "CREATE EXTENSION $extension"; done
}

# Every server below our folder, those of the TAP tests too. A pid file may be left over from a killed server and its number
# belong to somebody else by now: a postmaster works in its data directory, so that is what we look at.
stop_clusters() {
    local file dir
    while IFS= read -r file; do
        dir=${file%/*}
        if [[ /proc/$(head -n1 "$file")/cwd -ef $dir ]]; then
            pg_ctl -D "$dir" -m fast -t 30 stop >/dev/null 2>&1 || pg_ctl -D "$dir" -m immediate stop >/dev/null 2>&1 || true
        fi
    done < <(find "$RATCHET_WORK" -name postmaster.pid 2>/dev/null)
}

trap stop_clusters EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
