#!/bin/bash
# check.sh: runs the worker for real and looks at what became of the jobs. Needs PG* of a database with the extension, and
# npm's pg ("npm install" here, or Debian's node-pg).
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
    local end=$((SECONDS + 20))
    while ((SECONDS < end)); do
        if [[ $(sql "$2") == t ]]; then return; fi
        read -rt 0.05 <> <(:) || true
    done
    expect "$1" true "not after 20 s"
}

worker=
trap 'if [[ -n $worker ]]; then kill -KILL "$worker" 2>/dev/null || true; fi' EXIT

sql "CREATE TABLE shipment (order_id int PRIMARY KEY)"
sql "SELECT ratchet.enqueue('greet', '{\"name\": \"Ada\"}', 'check');
     SELECT ratchet.enqueue('greet', '{}', 'check');
     SELECT ratchet.enqueue('flaky', queue => 'urgent', backoff => 'none');
     SELECT ratchet.enqueue('maybe', queue => 'check');
     SELECT ratchet.enqueue('ship', '{\"order\": 1}', 'check');
     SELECT ratchet.enqueue('ship', '{\"order\": 1, \"again\": true}', 'check', max_attempts => 1);
     SELECT ratchet.enqueue('unheard of', queue => 'check', max_attempts => 1)" >/dev/null
node handlers.js --drain --name w1 urgent check
expect "each outcome" \
    "flaky succeeded 2 [\"an\", \"array\"]
greet failed 1 GiveUp: the payload has no name
greet succeeded 1 {\"greeting\": \"Hello Ada\"}
maybe skipped 1 already done by hand
ship failed 1
ship succeeded 1 {\"shipped\": 1}
unheard of failed 1 Error: no handler for kind unheard of" \
    "$(sql "SELECT concat_ws(' ', kind, state, attempt, coalesce(result::text,
                   CASE WHEN kind <> 'ship' THEN last_error END))
              FROM ratchet.jobs ORDER BY 1")"
expect "the failed shipment tells why" t "$(sql "SELECT last_error LIKE '%duplicate key%' AND detail ? 'stack'
    FROM ratchet.jobs JOIN ratchet.job_errors ON job_id = id WHERE kind = 'ship' AND state = 'failed'")"
expect "one shipment" 1 "$(sql "SELECT count(*) FROM shipment")"

# The heartbeat keeps leases that are much shorter than the job; a cancel then stops the handler.
sql "SELECT ratchet.enqueue('long', queue => 'check', tags => '{first}')" >/dev/null
node handlers.js --name w2 --lease 1.5 --poll 0.1 --grace 0.5 check &
worker=$!
until_true "the lease is extended" "SELECT state = 'running' AND lease_expires_at > picked_at + '3 s' AND progress > 0
                                      FROM ratchet.jobs WHERE tags = '{first}'"
expect "a job with a heartbeat is no orphan" 0 "$(sql "SELECT ratchet.maintenance_step('recover')")"
sql "SELECT ratchet.cancel(id) FROM ratchet.jobs WHERE tags = '{first}'" >/dev/null

# The worker is free again and takes the next two; on SIGTERM it gives back both, the one that listens and the one that
# does not.
sql "SELECT ratchet.enqueue(kind, queue => 'check', tags => '{second}') FROM unnest('{long,deaf}'::text[]) AS kind" >/dev/null
until_true "the next two are claimed" "SELECT count(*) = 2 FROM ratchet.jobs WHERE tags = '{second}' AND state = 'running'"
kill -TERM "$worker"
wait "$worker"
worker=
expect "SIGTERM gives the jobs back" "pending 0 worker stopped
pending 0 worker stopped" \
    "$(sql "SELECT concat_ws(' ', state, attempt, last_error) FROM ratchet.jobs WHERE tags = '{second}'")"
expect "the canceled job stays canceled" canceled "$(sql "SELECT state FROM ratchet.jobs WHERE tags = '{first}'")"

node check.js
echo "all as expected"
