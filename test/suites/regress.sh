# regress: the SQL contract, sql/*.sql against expected/*.out.
# shellcheck shell=bash

suite_regress() {
    local out=$RATCHET_WORK/regress rc=0
    pick_cases REGRESS
    if ((${#cases[@]} == 0)); then return; fi
    use_cluster "${CLUSTER:-plain}"
    mkdir -p "$out"
    # shellcheck disable=SC2046
    "$pgxs/src/test/regress/pg_regress" --bindir="$bindir" --outputdir="$out" $(make -s print-REGRESS_OPTS) \
        --inputdir="$root" "${cases[@]}" >"$out/log" 2>&1 || rc=$?
    report_regress "$out/log" "$out/regression.diffs" "$rc"
}
