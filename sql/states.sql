-- States: the table of transitions, and the helpers that speak of them.

SELECT unnest(enum_range(NULL::ratchet.job_state)) AS state;
SELECT from_state, to_state, done_by FROM ratchet.transition ORDER BY from_state NULLS FIRST, to_state;
-- Each is there once, and the view has nothing that the guard's function has not.
SELECT from_state, to_state FROM ratchet.transition GROUP BY 1, 2 HAVING count(*) > 1;
SELECT * FROM ratchet.transition EXCEPT SELECT * FROM ratchet.transitions();
SELECT count(*) AS transitions, count(DISTINCT from_state) AS states_to_leave, count(DISTINCT to_state) AS states_to_reach FROM ratchet.transition;
-- What leads nowhere, and what is terminal for the helpers: failed too, for only an operator moves it.
SELECT state, ratchet.is_terminal(state), ratchet.is_successful(state), ratchet.was_executed(state), state = ANY (ratchet.terminal_states()) AS among_terminal_states,
       NOT EXISTS (SELECT FROM ratchet.transition WHERE from_state = state) AS leads_nowhere
  FROM unnest(enum_range(NULL::ratchet.job_state)) state
 ORDER BY state;
SELECT ratchet.is_terminal(NULL), ratchet.is_successful(NULL), ratchet.was_executed(NULL);
SELECT ratchet.terminal_states(), pg_typeof(ratchet.terminal_states());
SELECT ratchet.is_terminal('ninth');
-- As they are immutable they can stand in an index or a constraint.
CREATE TABLE states_test (state ratchet.job_state CHECK (NOT ratchet.is_terminal(state)));
CREATE INDEX ON states_test (ratchet.was_executed(state));
INSERT INTO states_test VALUES ('pending'), ('running'), ('paused');
INSERT INTO states_test VALUES ('failed');
DROP TABLE states_test;
-- The view is to read.
INSERT INTO ratchet.transition VALUES ('succeeded', 'pending', 'me');
DELETE FROM ratchet.transition;
-- The same eight states along one life each, through the functions.
CREATE TEMP TABLE life (kind text, id uuid);
INSERT INTO life SELECT k, ratchet.enqueue(k, queue => 'states', hold => k = 'held', max_attempts => 1, run_at => '2024-01-01 00:00Z')
  FROM unnest('{completed,failed,skipped,canceled,held,retried,waiting}'::text[]) k;
SELECT count(*) FROM ratchet.claim('states', 'w', 10, kinds => '{completed,failed,skipped,retried}');
SELECT kind, CASE kind WHEN 'completed' THEN ratchet.complete(id, token)::text WHEN 'failed' THEN ratchet.fail(id, token, 'e')::text
                       WHEN 'retried' THEN ratchet.fail(id, token, 'e')::text WHEN 'skipped' THEN ratchet.skip(id, token)::text END AS answer
  FROM life JOIN ratchet.job USING (id, kind) WHERE state = 'running' ORDER BY kind;
SELECT ratchet.cancel(id) FROM life WHERE kind = 'canceled';
SELECT ratchet.retry(id) FROM life WHERE kind = 'retried';
SELECT kind, state, paused_from, ratchet.is_terminal(state), ratchet.is_successful(state), ratchet.was_executed(state) FROM life JOIN ratchet.job USING (id, kind) ORDER BY kind;
SELECT ratchet.cancel_many('states');
DELETE FROM ratchet.job WHERE queue = 'states';
DELETE FROM ratchet.job_error WHERE queue = 'states';
