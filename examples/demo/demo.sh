#!/bin/bash
# demo.sh: ratchet in half a minute. "make demo" builds it, starts a private server and plays this there. By hand it needs PG*
# of a superuser in a database of its own that has the extension. Ends with code 1 if something did not happen as told.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

step=0
bold='' plain=''
if [[ -t 1 ]]; then bold=$'\e[1m' plain=$'\e[0m'; fi
log=$(mktemp)
worker=
export TOKEN_FILE=$log.token
trap 'kill_worker; rm -f "$log" "$TOKEN_FILE"' EXIT

tell() {    # tell TEXT...: what comes next
    step=$((step + 1))
    printf '\n%s%d. %s%s\n' "$bold" "$step" "$1" "$plain"
    shift
    if (($#)); then printf '   %s\n' "$@"; fi
    echo
}

show() {    # show <<SQL: print it, run it, print what the server says; piece by piece, an empty line between them
    local text line
    while
        text=
        while IFS= read -r line && [[ -n $line ]]; do text+="    $line"$'\n'; done
        [[ -n $text ]]
    do
        printf '%s' "$text"
        psql -Xq -v ON_ERROR_STOP="${1:-1}" -P footer=off <<<"$text" 2>&1 | sed -e '/^$/d' -e 's/^/        /'
    done
}

ask() { psql -XAtq -v ON_ERROR_STOP=1 -c "$1"; }

sure() {    # sure WHAT QUERY: it is true, or becomes true within 10 s
    local end=$((SECONDS + 10))
    while ((SECONDS < end)); do
        if [[ $(ask "SELECT coalesce(bool_and(x), false) FROM ($2) AS q(x)") == t ]]; then return; fi
        read -rt 0.05 <> <(:) || true
    done
    worker_said
    printf '\nThis did not happen: %s\n' "$1" >&2
    exit 1
}

start_worker() {    # start_worker NAME: in a process group of its own, so that one signal reaches all of it
    : >"$log"
    set -m
    POLL=0.1 LEASE=2 HANDLERS=handlers ../sql/worker.sh shop "$1" 2>"$log" &
    worker=$!
    set +m
}

stop_worker() {     # politely
    kill -TERM "$worker"
    wait "$worker"
    worker=
}

kill_worker() {     # with all its children
    if [[ -z $worker ]]; then return; fi
    kill -KILL -- "-$worker" 2>/dev/null || true
    wait "$worker" 2>/dev/null || true
    worker=
}

worker_said() { sed 's/^/        | /' "$log"; }

echo "A small shop puts its background work into ratchet. Everything below really runs; the database is the only daemon."

tell "A job is part of your transaction." \
    "The order and its receipt are committed together. The second order is rolled back, and its job with it."
show <<'SQL'
CREATE TABLE orders (id int PRIMARY KEY, item text);

BEGIN;
INSERT INTO orders VALUES (1, 'tea pot');
SELECT ratchet.enqueue('receipt', '{"order": 1}', 'shop') AS job;
COMMIT;

BEGIN;
INSERT INTO orders VALUES (2, 'no such thing');
SELECT ratchet.enqueue('receipt', '{"order": 2}', 'shop') AS job;
ROLLBACK;

SELECT kind, payload, state FROM ratchet.jobs;
SQL
sure "one receipt is there" "SELECT count(*) = 1 FROM ratchet.jobs"

tell "More work, of different urgency." \
    "Higher priorities go first; a job that waits rises by one every 15 minutes, so nothing starves."
show <<'SQL'
SELECT ratchet.enqueue('thumbnail', queue => 'shop', priority => -10) IS NOT NULL AS thumbnail,
       ratchet.enqueue('refund', queue => 'shop', priority => 50) IS NOT NULL AS refund;

SELECT ratchet.enqueue('newsletter', queue => 'shop', run_at => now() + '1 hour') IS NOT NULL AS newsletter;
SQL

tell "A worker. Ours is a bash script around psql; any language with a driver will do." \
    "It claims under a lease, runs the handler, completes with the claim's token. Refund, receipt, thumbnail: by priority."
start_worker ann
sure "three jobs succeeded" \
    "SELECT count(*) = 3 FROM ratchet.jobs WHERE state = 'succeeded' AND kind IN ('refund', 'receipt', 'thumbnail')"
worker_said
sure "they ran by priority" \
    "SELECT array_agg(kind::text ORDER BY picked_at) = '{refund,receipt,thumbnail}' FROM ratchet.jobs WHERE state = 'succeeded'"

tell "A failure is tried again, later each time." \
    "The first attempt at this invoice fails. It is pending again, due after the backoff, and then it succeeds."
show <<'SQL'
SELECT ratchet.enqueue('invoice', queue => 'shop', backoff_base => '3 seconds', jitter => false) IS NOT NULL AS invoice;
SQL
sure "the invoice failed once, to be tried again 3 seconds later" \
    "SELECT attempt = 1 AND state = 'pending' AND scheduled_at - picked_at BETWEEN '3 s' AND '5 s' FROM ratchet.jobs WHERE kind = 'invoice'"
show <<'SQL'
SELECT state, attempt, max_attempts, last_error, date_trunc('second', scheduled_at - picked_at) AS tried_again_after
  FROM ratchet.jobs WHERE kind = 'invoice';
SQL
sure "the invoice succeeded at attempt 2" "SELECT attempt = 2 AND state = 'succeeded' FROM ratchet.jobs WHERE kind = 'invoice'"
show <<'SQL'
SELECT state, attempt, last_error FROM ratchet.jobs WHERE kind = 'invoice';
SQL

tell "A job that fails for good keeps its history." \
    "Two attempts, both in vain. The worker's message had a password in it; what is stored has none."
show <<'SQL'
SELECT ratchet.enqueue('sync', queue => 'shop', max_attempts => 2, backoff => 'none') IS NOT NULL AS sync;
SQL
sure "sync failed" "SELECT state = 'failed' AND attempt = 2 FROM ratchet.jobs WHERE kind = 'sync'"
show <<'SQL'
SELECT e.attempt, e.worker, e.error FROM ratchet.job_errors e JOIN ratchet.jobs j ON j.id = e.job_id
 WHERE j.kind = 'sync' ORDER BY e.at;
SQL
sure "no password is stored" "SELECT error NOT LIKE '%hunter2%' AND error LIKE '%REDACTED%' FROM ratchet.job_errors WHERE error LIKE '%warehouse%'"

tell "Canceling. The newsletter was to go out in an hour."
show <<'SQL'
SELECT ratchet.cancel(id, 'not this week') FROM ratchet.jobs WHERE kind = 'newsletter';
SQL
sure "the newsletter is canceled" "SELECT state = 'canceled' FROM ratchet.jobs WHERE kind = 'newsletter'"

tell "A worker dies: kill -9 in the middle of a job." \
    "Ann is stopped; Bob takes a report that will take him long, under a lease of 2 seconds, and is killed."
stop_worker
show <<'SQL'
SELECT ratchet.enqueue('report', queue => 'shop') IS NOT NULL AS report;
SQL
REPORT_SECONDS=60 start_worker bob
sure "bob runs the report" "SELECT state = 'running' AND picked_by = 'bob' FROM ratchet.jobs WHERE kind = 'report'"
while [[ ! -s $TOKEN_FILE ]]; do read -rt 0.05 <> <(:) || true; done
kill_worker
echo "    kill -9"
show <<'SQL'
SELECT state, picked_by, attempt, crashes, lease_expires_at::time(0) AS lease_ends, clock_timestamp()::time(0) AS now
  FROM ratchet.jobs WHERE kind = 'report';
SQL

tell "The lease runs out, and maintenance gives the job to somebody else." \
    "With ratchet preloaded a background worker does it by itself; here it is called by hand." \
    "Nobody says goodbye for a dead worker. The lost run counts as a crash, not as an attempt."
sure "the lease has ended" "SELECT lease_expires_at < clock_timestamp() FROM ratchet.jobs WHERE kind = 'report'"
show <<'SQL'
CALL ratchet.run_maintenance();

SELECT state, attempt, crashes, last_error FROM ratchet.jobs WHERE kind = 'report';
SQL
sure "the report is recovered" "SELECT state = 'pending' AND crashes = 1 AND attempt = 0 FROM ratchet.jobs WHERE kind = 'report'"
start_worker cat
sure "cat did the report" "SELECT state = 'succeeded' AND picked_by = 'cat' FROM ratchet.jobs WHERE kind = 'report'"
worker_said
stop_worker

tell "The fence. Was Bob dead, or only slow? It does not matter." \
    "If he came back now and completed the report with his old token, he would change nothing."
bob_token=$(<"$TOKEN_FILE")
show <<SQL
SELECT ratchet.complete(id, '$bob_token', '"by bob"') AS accepted, result, picked_by
  FROM ratchet.jobs WHERE kind = 'report';
SQL
sure "bob is refused" "SELECT NOT ratchet.complete(id, '$bob_token', '\"by bob\"') FROM ratchet.jobs WHERE kind = 'report'"
sure "his result is not there" "SELECT result IS NULL FROM ratchet.jobs WHERE kind = 'report'"

tell "The guard. What is not a transition is refused to every writer, also to the superuser that this demo is." \
    "Each of these is an SQLSTATE RT001, and the hint says what to call instead."
show 0 <<'SQL'
UPDATE ratchet.job SET state = 'pending' WHERE kind = 'report';

SELECT ratchet.enqueue('survey', '{"stars": 1}', 'later') IS NOT NULL AS survey;

UPDATE ratchet.job SET payload = '{"stars": 5}' WHERE kind = 'survey';

DELETE FROM ratchet.job WHERE kind = 'survey';
SQL
for change in "UPDATE ratchet.job SET state = 'pending' WHERE kind = 'report'" \
              "UPDATE ratchet.job SET payload = '{\"stars\": 5}' WHERE kind = 'survey'" \
              "DELETE FROM ratchet.job WHERE kind = 'survey'"; do
    if [[ $(psql -XAtq -v VERBOSITY=sqlstate -c "$change" 2>&1) != *RT001* ]]; then
        printf '\nThe guard let this pass: %s\n' "$change" >&2
        exit 1
    fi
done

tell "The archive. Finished jobs leave the hot table after a while, for a table partitioned by week." \
    "The while is an hour; here it is nothing. Failed jobs stay, to be retried."
show <<'SQL'
SELECT ratchet.configure_queue('shop', archive_after => '0');

CALL ratchet.run_maintenance();

SELECT tableoid::regclass::text ~ '^ratchet.job_archive_[0-9]{8}$' AS in_a_weekly_partition, count(*)
  FROM ratchet.job_archive GROUP BY 1;
SQL
sure "all but the failed job are in a weekly partition" \
    "SELECT count(*) = 6 AND bool_and(tableoid::regclass::text ~ '^ratchet.job_archive_[0-9]{8}\$') FROM ratchet.job_archive"

tell "What became of it all. ratchet.jobs shows live and archived jobs as one."
show <<'SQL'
SELECT kind, state, attempt AS attempts, crashes, picked_by AS worker, archived, last_error AS "error or reason"
  FROM ratchet.jobs WHERE queue = 'shop' ORDER BY id;
SQL
sure "everything is as told" \
    "SELECT string_agg(kind || ' ' || state, ', ' ORDER BY kind) = 'invoice succeeded, newsletter canceled, receipt succeeded, '
         || 'refund succeeded, report succeeded, sync failed, thumbnail succeeded' FROM ratchet.jobs WHERE queue = 'shop'"

printf '\nEverything happened as told. README.md has the rest.\n'
