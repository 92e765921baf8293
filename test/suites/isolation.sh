# isolation: races between sessions, step by step, test/isolation/specs against test/isolation/expected.
# shellcheck shell=bash

suite_isolation() {
    local out=$RATCHET_WORK/isolation rc=0
    pick_cases ISOLATION
    if ((${#cases[@]} == 0)); then return; fi
    use_cluster "${CLUSTER:-plain}"
    mkdir -p "$out"
    # shellcheck disable=SC2046
    "$pgxs/src/test/isolation/pg_isolation_regress" --bindir="$bindir" --outputdir="$out" $(make -s print-ISOLATION_OPTS) \
        "${cases[@]}" >"$out/log" 2>&1 || rc=$?
    report_regress "$out/log" "$out/regression.diffs" "$rc"
}
