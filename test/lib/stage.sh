# stage.sh: from a checkout to a private place to work in.
#
# The checkout must stay as it is, and PostgreSQL refuses to run as root. So a script that calls "stage" is started a second
# time: from a copy of the sources in a temporary folder, as user postgres if we are root and as ourselves otherwise. Only
# that second life gets past the call; the first one waits for it, passes signals on, and removes the folder.
#
# In the second life $RATCHET_WORK is the folder and $root, as in the first, the top of the sources.
# shellcheck shell=bash

say() { echo "-- $*" >&2; }
die() { echo "${0##*/}: $*" >&2; exit 1; }

stage() {   # stage PURPOSE SCRIPT ARG...
    if [[ $root == "${RATCHET_WORK:-}/tree" ]]; then return; fi
    local purpose=$1 script=$2 as_user=() child rc=0
    shift 2

    clean_environment
    # shellcheck source=test/lib/packages.sh
    . "$root/test/lib/packages.sh"
    need_packages "$purpose"

    RATCHET_WORK=$(mktemp -d "${RATCHET_TMP:-/tmp}/ratchet.XXXXXX")
    trap remove_work EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
    mkdir "$RATCHET_WORK"/{tree,home,tmp}
    copy_sources "$RATCHET_WORK/tree"
    if [[ $purpose == test ]]; then provide_node_modules "$RATCHET_WORK"; fi
    if ((EUID == 0)); then
        as_user=(setpriv --reuid=postgres --regid=postgres --init-groups)
        chown -R postgres: "$RATCHET_WORK"
    fi
    if [[ -n ${KEEP:-} ]]; then say "working in $RATCHET_WORK, which stays"; fi

    set -m              # a process group of its own: one signal then reaches all of it, whatever it waits for
    cd /                # our own folder may be closed to the other user
    "${as_user[@]}" env RATCHET_WORK="$RATCHET_WORK" HOME="$RATCHET_WORK/home" TMPDIR="$RATCHET_WORK/tmp" \
        "$RATCHET_WORK/tree/test/$script" "$@" </dev/null &
    child=$!
    set +m
    trap 'kill -TERM -- "-$child" 2>/dev/null || true' INT TERM
    wait "$child" || rc=$?
    while kill -0 "$child" 2>/dev/null; do wait "$child" || rc=$?; done     # a signal ended the first wait
    exit "$rc"
}

remove_work() { [[ -n ${KEEP:-} ]] || rm -rf "$RATCHET_WORK"; }

# Whatever the caller's shell is set up for (another server, a make with flags, another language) must not change results.
clean_environment() {
    local name system=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
    for name in "${!PG@}"; do
        if [[ $name != PG_* ]]; then unset "$name"; fi      # PGHOST and its like; PG_CONFIG and PG_TEST_* are for us
    done
    unset MAKEFLAGS MFLAGS MAKELEVEL LANGUAGE
    export LC_ALL=C.UTF-8
    # Root's own additions are usually closed to user postgres.
    if ((EUID == 0)); then PATH=$system; else PATH=$system:$PATH; fi
    export PG_MAJOR=${PG_MAJOR:-15}
    export PG_CONFIG=${PG_CONFIG:-/usr/lib/postgresql/$PG_MAJOR/bin/pg_config}
}

# What git tracks and what it does not know yet, but nothing it ignores; outside of git all but what a build left.
copy_sources() {    # copy_sources DIR
    local list=$RATCHET_WORK/files name
    cd "$root" || exit
    if git -c safe.directory="$root" ls-files -co --exclude-standard -z >"$list" 2>/dev/null && [[ -s $list ]]; then
        while IFS= read -r -d '' name; do
            if [[ -e $name || -L $name ]]; then printf '%s\0' "$name"; fi       # deleted, yet still in the index
        done <"$list" | tar -c --null -T - | tar -x --no-same-owner -C "$1"
    else
        tar -c --exclude=.git --exclude='*.o' --exclude='*.bc' --exclude='*.so' . | tar -x --no-same-owner -C "$1"
    fi
}
