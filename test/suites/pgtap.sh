# pgtap: contract and privileges, test/pgtap/*.sql, each file in a database of its own.
# shellcheck shell=bash

suite_pgtap() {
    local name log rc
    pick_files 'test/pgtap/*.sql'
    if ((${#cases[@]} == 0)); then return; fi
    use_cluster "${CLUSTER:-plain}"
    for name in "${cases[@]}"; do
        log=$RATCHET_WORK/pgtap.$name.log rc=0
        fresh_database "pgtap_$name" pgtap ratchet
        pg_prove --verbose --dbname "$PGDATABASE" "test/pgtap/$name.sql" >"$log" 2>&1 || rc=$?
        report_tap "$name" "$log" "$rc"
    done
}
