# stress: workers, producers, operators and maintenance all at once for some seconds, then the invariants. STRESS_SECONDS
# makes it longer; the seed is printed when it fails.
# shellcheck shell=bash

suite_stress() {
    local seconds=${STRESS_SECONDS:-10} seed=$RANDOM log=$RATCHET_WORK/stress rc=0 workers
    use_cluster "${CLUSTER:-plain}"
    fresh_database stress ratchet
    psql -Xqf test/stress/setup.sql
    pgbench -n --random-seed="$seed" -c 8 -T "$seconds" -f test/stress/work.pgbench >"$log.work" 2>&1 &
    workers=$!
    pgbench -n --random-seed="$seed" -c 6 -T "$seconds" -f test/stress/operate.pgbench >"$log.operate" 2>&1 || rc=$?
    wait "$workers" || rc=$?
    if ((rc == 0)); then pass "no client met an error"; else
        grep -h error "$log.work" "$log.operate" >"$log.errors" || true
        fail "a client met an error (seed $seed)" "$log.errors"
    fi
    if psql -XqAt -v ON_ERROR_STOP=1 -f test/stress/check.sql >"$log.check" 2>&1 && [[ ! -s $log.check ]]; then
        pass "the invariants hold"
    else
        fail "the invariants do not hold (seed $seed)" "$log.check"
    fi
}
