# packages.sh: see that the programs are there that a demo or a test needs. Asks apt only for what is missing.
# shellcheck shell=bash

need_packages() {   # need_packages demo|test
    local wanted=("postgresql-$PG_MAJOR" "postgresql-server-dev-$PG_MAJOR" gcc libc6-dev make) missing=() package
    if [[ $1 == test ]]; then
        wanted+=("postgresql-$PG_MAJOR-cron" "postgresql-$PG_MAJOR-pgtap" libtap-parser-sourcehandler-pgtap-perl
                 libipc-run-perl python3-psycopg cppcheck pgbouncer)
        if ! have_node; then wanted+=(nodejs node-pg); fi
    fi
    for package in "${wanted[@]}"; do
        if ! is_installed "$package"; then missing+=("$package"); fi
    done
    if ((${#missing[@]})) && ! install_packages "${missing[@]}"; then
        # Without a test tool the suites that want it fail; without a server there is nothing to do.
        if [[ ! -x $(command -v "$PG_CONFIG") ]]; then exit 1; fi
        say "going on without"
    fi
}

is_installed() { [[ $(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null) == installed ]]; }

have_node() {
    local major
    major=$(node -p 'process.versions.node.split(".")[0]' 2>/dev/null) && ((major >= 16))
}

install_packages() {
    local as_root=""
    if ((EUID != 0)); then as_root=sudo; fi
    if ! command -v apt-get >/dev/null || ! command -v ${as_root:-true} >/dev/null; then
        say "please install what Debian calls $*"
        return 1
    fi
    say "installing $*"
    $as_root bash "$root/test/lib/apt-install" "$@"
}

# The examples for Node.js need npm's "pg". It is put where both require() and import look: above the sources.
provide_node_modules() {    # provide_node_modules DIR
    local cache=${XDG_CACHE_HOME:-$HOME/.cache}/ratchet-test
    if ! grep -qs '"pg"' "$root"/examples/*/package.json; then return; fi
    if [[ -d /usr/share/nodejs/pg ]]; then      # Debian's node-pg
        ln -s /usr/share/nodejs "$1/node_modules"
        return
    fi
    if [[ ! -d $cache/node_modules/pg ]]; then
        npm install --prefix "$cache" --ignore-scripts --no-audit --no-fund --no-update-notifier --loglevel=error \
            pg@8 >/dev/null ||
            say "npm could not fetch pg: examples that need it will fail"
    fi
    if [[ -d $cache/node_modules ]]; then cp -r "$cache/node_modules" "$1/"; fi
}
