#!/bin/bash
# check.sh: runs the worker for real and looks at what became of the jobs. Needs PG* of a database with the extension.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

sql() { psql -XAtqv ON_ERROR_STOP=1 -c "$1"; }

expect() {  # expect WHAT WANTED GOT
    if [[ $2 != "$3" ]]; then
        printf 'FAILED: %s\nwanted: %s\ngot:    %s\n' "$1" "$2" "$3"
        exit 1
    fi
    echo "ok: $1"
}

until_true() {  # until_true WHAT QUERY: look every 50 ms, at most 20 s
    local i
    for ((i = 0; i < 400; i++)); do
        if [[ $(sql "$2") == t ]]; then return; fi
        read -rt 0.05 <> <(:) || true
    done
    expect "$1" true "not after 20 s"
}

worker=
trap 'if [[ -n $worker ]]; then kill "$worker" 2>/dev/null || true; fi' EXIT

sql "SELECT ratchet.enqueue('greet', '{\"name\": \"Ada\"}', 'check');
     SELECT ratchet.enqueue('greet', '{}', 'check');
     SELECT ratchet.enqueue('flaky', queue => 'check', backoff => 'none');
     SELECT ratchet.enqueue('maybe', queue => 'check');
     SELECT ratchet.enqueue('chatty', queue => 'check', max_attempts => 1);
     SELECT ratchet.enqueue('unheard of', queue => 'check', max_attempts => 1)" >/dev/null
./worker.sh --drain check w1
expect "each outcome" \
    "chatty failed 1
flaky succeeded 2
greet failed 1 the payload has no name
greet succeeded 1 {\"greeting\": \"Hello Ada\"}
maybe skipped 1 already done by hand
unheard of failed 1 no handler for kind unheard of" \
    "$(sql "SELECT concat_ws(' ', kind, state, attempt, CASE WHEN kind <> 'chatty' THEN coalesce(result::text, last_error) END)
              FROM ratchet.jobs WHERE queue = 'check' ORDER BY 1")"
expect "a refused result is told" t "$(sql "SELECT last_error LIKE '%invalid input syntax for type json%'
                                              FROM ratchet.jobs WHERE kind = 'chatty'")"
expect "the history has the retried failure" "1 w1 no luck yet" \
    "$(sql "SELECT concat_ws(' ', e.attempt, worker, error) FROM ratchet.job_errors e JOIN ratchet.jobs ON id = job_id
             WHERE kind = 'flaky'")"

# The heartbeat keeps a lease that is much shorter than the job; a cancel then stops the handler.
sql "SELECT ratchet.enqueue('long', queue => 'check')" >/dev/null
LEASE=2 POLL=0.1 ./worker.sh check w2 &
worker=$!
until_true "long job is running" "SELECT state = 'running' FROM ratchet.jobs WHERE kind = 'long'"
until_true "its lease is extended" "SELECT lease_expires_at > picked_at + '4 s' FROM ratchet.jobs WHERE kind = 'long'"
expect "a job with a heartbeat is no orphan" 0 "$(sql "SELECT ratchet.maintenance_step('recover')")"
sql "SELECT ratchet.cancel(id) FROM ratchet.jobs WHERE kind = 'long'" >/dev/null

# The worker is free again, takes the next one, and on SIGTERM gives it back.
sql "SELECT ratchet.enqueue('long', queue => 'check', tags => '{second}')" >/dev/null
until_true "the next job is running" "SELECT state = 'running' FROM ratchet.jobs WHERE tags = '{second}'"
kill -TERM "$worker"
wait "$worker"
worker=
expect "SIGTERM gives the job back" "pending 0 worker stopped" \
    "$(sql "SELECT concat_ws(' ', state, attempt, last_error) FROM ratchet.jobs WHERE tags = '{second}'")"
expect "the canceled job stays canceled" canceled \
    "$(sql "SELECT state FROM ratchet.jobs WHERE kind = 'long' AND tags IS NULL")"

# With AUTOCOMMIT off a claim is undone by ROLLBACK and holds by COMMIT; literals need no casts.
sql "SELECT ratchet.enqueue('greet', queue => 'by hand')" >/dev/null
expect "claim, rollback, claim, complete, commit" "1 t" "$(psql -XAtq -v ON_ERROR_STOP=1 -v AUTOCOMMIT=off <<'SQL'
SELECT id AS first FROM ratchet.claim('by hand', 'me') \gset
ROLLBACK;
SELECT id, token, attempt FROM ratchet.claim('by hand', 'me') \gset
COMMIT;
SELECT concat_ws(' ', :attempt, ratchet.complete(:'id', :'token', '{"by": "hand"}', true));
COMMIT;
SQL
)"
expect "committed" succeeded "$(sql "SELECT state FROM ratchet.jobs WHERE queue = 'by hand'")"
echo "all as expected"
