# tap: everything about processes (workers, crashes, standbys, upgrades), test/t/*.pl; each file has servers of its own.
# shellcheck shell=bash

suite_tap() {
    local name out=$RATCHET_WORK/tap
    pick_files 'test/t/*.pl'
    if ((${#cases[@]} == 0)); then return; fi
    mkdir -p "$out"
    # What PostgreSQL::Test::Cluster goes by. It adds TEMP_CONFIG to the settings of every server that it makes.
    export PERL5LIB=$pgxs/src/test/perl:$root/test/lib
    export TESTDIR=$out TESTDATADIR=$out/tmp_check TESTLOGDIR=$out/tmp_check/log
    export PG_REGRESS=$pgxs/src/test/regress/pg_regress PG_TEST_PORT_DIR=$out/ports TEMP_CONFIG=$server_conf
    export PG_TEST_TIMEOUT_DEFAULT=${PG_TEST_TIMEOUT_DEFAULT:-60}
    # shellcheck disable=SC2016
    printf '%s\n' "${cases[@]}" | xargs -r -P "${TAP_JOBS:-2}" -I{} bash -c '
        rc=0
        prove --verbose "test/t/$1.pl" >"$TESTDIR/$1.log" 2>&1 || rc=$?
        echo "$rc" >"$TESTDIR/$1.rc"' tap {}
    for name in "${cases[@]}"; do
        report_tap "$name" "$out/$name.log" "$(<"$out/$name.rc")"
    done
}
