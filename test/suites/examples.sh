# examples: each examples/NAME/check.sh must end well. It is started in its folder, with PGHOST, PGPORT, PGUSER, PGPASSWORD
# and PGDATABASE of a fresh database that has the extension, in a server that has it preloaded.
# shellcheck shell=bash

suite_examples() {
    local name log
    if ((${#cases[@]} == 0)); then
        mapfile -t cases < <(compgen -G 'examples/*/check.sh' | sed 's|^examples/||; s|/check.sh$||' | sort)
    fi
    if ((${#cases[@]} == 0)); then return; fi
    use_cluster preload
    export PGHOST=127.0.0.1         # not every client library knows about sockets
    for name in "${cases[@]}"; do
        log=$RATCHET_WORK/example.$name.log
        fresh_database "example_$name" ratchet
        if (cd "examples/$name" && timeout 300 bash ./check.sh) >"$log" 2>&1; then
            pass "$name"
        else
            fail "$name" "$log"
        fi
    done
}
