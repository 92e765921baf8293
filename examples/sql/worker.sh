#!/bin/bash
# worker.sh [--once | --drain] QUEUE [NAME]: a complete ratchet worker made of bash and psql.
#
# A handler is a program: handlers/KIND gets the payload on stdin, and JOB_ID, JOB_ATTEMPT and JOB_TOKEN in its environment.
# Its exit code says what becomes of the job:
#   0      done; stdout is the result, JSON or nothing         ratchet.complete
#   65     failed, and would always fail; stderr is the error  ratchet.fail(retryable => false)
#   66     nothing to do; stderr is the reason                 ratchet.skip
#   other  failed; stderr is the error                         ratchet.fail: again later, while attempts are left
#
# It does one job at a time; start several workers for more. --once ends after one look, --drain when nothing is due.
# SIGTERM and SIGINT stop the handler, give the job back (ratchet.release) and end the worker.
# Environment: what psql knows (PGHOST, PGDATABASE, ...), HANDLERS (a folder), LEASE and POLL (seconds: the
# longest it waits before it looks again; it is woken when work comes).
set -uo pipefail

mode=forever
case ${1-} in --once | --drain) mode=${1#--}; shift ;; esac
queue=${1:?"usage: worker.sh [--once | --drain] QUEUE [NAME]"}
name=${2:-$(hostname).$$}
handlers=${HANDLERS:-$(dirname "${BASH_SOURCE[0]}")/handlers}
lease=${LEASE:-60}
poll=${POLL:-1}

scratch=$(mktemp -d)
export scratch
trap 'if ((BASHPID == $$)); then rm -rf "$scratch"; fi' EXIT
stopping=
handler=
trap 'stopping=1; if [[ -n $handler ]]; then kill "$handler" 2>/dev/null; fi' TERM INT

say() { echo "$name: $*" >&2; }

# psql in autocommit mode: each statement is a transaction of its own, so a claim is committed before the work begins. Values
# go in as variables (:'x' is a quoted literal), never as text spliced into SQL, and not as arguments that "ps" would show.
ask() { psql -XAtq -F $'\t' -v ON_ERROR_STOP=1; }

claim() {
    queue=$queue name=$name lease=$lease ask <<'SQL'
\getenv queue queue
\getenv name name
\getenv lease lease
SELECT id, token, attempt, kind, payload FROM ratchet.claim(:'queue', :'name', lease => :'lease');
SQL
}

# Answers t as soon as there may be work, f when the time is up. The server wakes us if ratchet is preloaded, else it polls.
wait_for_work() {
    queue=$queue poll=$poll ask <<'SQL'
\getenv queue queue
\getenv poll poll
CALL ratchet.wait(ARRAY[:'queue'], (:'poll' || ' s')::interval);
SQL
}

# About the job we hold. "text" is what the file $scratch/out or $scratch/err contains.
report() {  # report out|err EXPRESSION
    id=$id token=$token file=$1 ask <<SQL
\getenv id id
\getenv token token
\set text \`cat "\$scratch/\$file"\`
SELECT $2;
SQL
}

# Keeps the lease alive over a connection of its own, until its stdin ends: when the handler has ended, or the worker is gone.
# When the job is not ours any more there is nobody to work for.
beat() {
    local pulse=$((lease > 3 ? lease / 3 : 1)) code
    while read -rt "$pulse"; code=$?; ((code > 128)); do
        case $(report err "status FROM ratchet.heartbeat(ARRAY[:'id']::uuid[], ARRAY[:'token']::uuid[])" 2>/dev/null) in
            canceled | lost) kill "$handler"; return ;;
        esac
    done
}

work() {    # with id, token, attempt, kind and payload of the claimed job
    local code=0 beater beater_pid answer
    : >"$scratch/out" 2>"$scratch/err"
    if [[ $kind == */* || ! -x $handlers/$kind ]]; then
        echo "no handler for kind $kind" >"$scratch/err"
        code=1
    else
        JOB_ID=$id JOB_ATTEMPT=$attempt JOB_TOKEN=$token \
            "$handlers/$kind" <<<"$payload" >"$scratch/out" 2>"$scratch/err" &
        handler=$!
        if [[ -n $stopping ]]; then kill "$handler"; fi     # the signal came just before
        exec {beater}> >(beat)
        beater_pid=$!
        while wait "$handler"; code=$?; kill -0 "$handler" 2>/dev/null; do :; done     # a signal ends a wait early
        handler=
        exec {beater}>&-
        wait "$beater_pid"
    fi

    if [[ -n $stopping ]] && ((code > 128)); then
        answer=$(report err "CASE WHEN ratchet.release(:'id', :'token', reason => 'worker stopped') THEN 'given back' END")
    elif ((code == 0)); then
        # A result that the database does not take is a failure too: said in a new transaction, as after any error.
        answer=$(report out "CASE WHEN ratchet.complete(:'id', :'token', nullif(:'text', '')::jsonb) THEN 'done' END" \
            2>"$scratch/err") || answer=$(report err "'failed, now ' || ratchet.fail(:'id', :'token', :'text')")
    elif ((code == 66)); then
        answer=$(report err "CASE WHEN ratchet.skip(:'id', :'token', nullif(:'text', '')) THEN 'skipped' END")
    else
        if [[ ! -s $scratch/err ]]; then echo "$kind ended with code $code" >"$scratch/err"; fi
        answer=$(report err "'failed, now ' || ratchet.fail(:'id', :'token', :'text', retryable => $((code != 65))::boolean)")
    fi
    # No answer: the lease was lost, and somebody else does the job or nobody is to; or the server was away, and the job is
    # an orphan until its lease has run out.
    say "$kind, attempt $attempt: ${answer:-not ours any more}"
}

told=
while [[ -z $stopping ]]; do
    if ! job=$(claim); then
        say "cannot claim, trying again"
        if [[ $mode != forever ]]; then exit 1; fi
        sleep "$poll"
    elif [[ -z $job ]]; then
        if [[ $mode != forever ]]; then break; fi
        # Told of work and none claimed: others were faster, or we are draining. Asking again at once would spin.
        if [[ $told == t ]] || ! told=$(wait_for_work); then sleep "$poll"; told=; fi
    else
        told=
        IFS=$'\t' read -r id token attempt kind payload <<<"$job"
        if [[ -n $stopping ]]; then report err "ratchet.release(:'id', :'token')"; break; fi
        work
        if [[ $mode == once ]]; then break; fi
    fi
done
say "ended"
