-- CALL wait, CALL await and claim's wait in a server that may not have ratchet preloaded: what they answer at once, after
-- their timeout, and whom they answer at all. Being woken is tested in test/t/030_wait.pl.

-- arguments
CALL ratchet.wait(NULL, '1 s');
CALL ratchet.wait('{}', '1 s');
CALL ratchet.wait('{wait_a,NULL}', '1 s');
CALL ratchet.wait('{wait_a,""}', '1 s');
CALL ratchet.wait('{wait_a}', NULL);
CALL ratchet.wait('{wait_a}', '0');
CALL ratchet.wait('{wait_a}', '-1 s');
CALL ratchet.wait('{wait_a}', '1 month');
CALL ratchet.wait('{wait_a}', '10 years');
CALL ratchet.wait('{wait_a}', '4000 days');
CALL ratchet.wait('{wait_a}', '1 s', '{k,NULL}');
CALL ratchet.wait('{wait_a}', '1 s', '{""}');
CALL ratchet.await(NULL, '1 s');
CALL ratchet.await('01900000-0000-7000-8000-000000000000', NULL);
CALL ratchet.await('01900000-0000-7000-8000-000000000000', '0');
SELECT * FROM ratchet.claim('wait_a', 'w', wait => '0');
SELECT * FROM ratchet.claim('wait_a', 'w', wait => '1 month');

-- autocommit only
BEGIN;
CALL ratchet.wait('{wait_a}', '1 s');
\echo :LAST_ERROR_SQLSTATE
ROLLBACK;
BEGIN;
CALL ratchet.await('01900000-0000-7000-8000-000000000000', '1 s');
\echo :LAST_ERROR_SQLSTATE
ROLLBACK;
CREATE FUNCTION wait_in_function() RETURNS boolean LANGUAGE plpgsql AS
    $$ DECLARE ready boolean; BEGIN CALL ratchet.wait('{wait_a}', '1 s', NULL, ready); RETURN ready; END $$;
SELECT wait_in_function();
DROP FUNCTION wait_in_function();
SELECT 1 \; CALL ratchet.wait('{wait_a}', '1 s');
-- a procedure may, as long as it is itself called outside a transaction block
DO $$ DECLARE ready boolean; BEGIN CALL ratchet.wait('{wait_a}', '10 ms', NULL, ready); RAISE NOTICE 'ready: %', ready; END $$;
BEGIN;
DO $$ DECLARE ready boolean; BEGIN CALL ratchet.wait('{wait_a}', '10 ms', NULL, ready); RAISE NOTICE 'ready: %', ready; END $$;
ROLLBACK;
-- but not under an exception handler, which is a subtransaction
DO $$ DECLARE ready boolean; BEGIN CALL ratchet.wait('{wait_a}', '10 ms', NULL, ready); EXCEPTION WHEN division_by_zero THEN NULL; END $$;
\echo :LAST_ERROR_SQLSTATE
-- whatever the defaults of the session are, but for read-only ones
SET default_transaction_isolation = 'serializable';
CALL ratchet.wait('{wait_a}', '10 ms');
RESET default_transaction_isolation;
SET default_transaction_read_only = on;
CALL ratchet.wait('{wait_a}', '10 ms');
\echo :LAST_ERROR_SQLSTATE
CALL ratchet.await('01900000-0000-7000-8000-000000000000', '1 s');
RESET default_transaction_read_only;

-- nothing there: the timeout
CALL ratchet.wait('{wait_a}', '20 ms');
CALL ratchet.wait(queues => '{wait_a,wait_b}', timeout => '20 ms', kinds => '{k}');
SELECT count(*) FROM ratchet.claim('wait_a', 'w', wait => '20 ms');
SELECT count(*) FROM ratchet.claim('{wait_a,wait_b}'::text[], 'w', wait => '20 ms');

-- work there: at once
SELECT ratchet.enqueue('k', queue => 'wait_b') AS job \gset
CALL ratchet.wait('{wait_a,wait_b}', '1 hour');
CALL ratchet.wait('{wait_a,wait_b}', '1 hour', '{j,k}');
CALL ratchet.wait('{wait_a,wait_b}', '20 ms', '{j}');
CALL ratchet.wait('{wait_a,wait_b}', '20 ms', '{}');
CALL ratchet.wait('{wait_a}', '20 ms');
-- a paused queue has no work
SELECT ratchet.pause_queue('wait_b');
CALL ratchet.wait('{wait_b}', '20 ms');
SELECT ratchet.resume_queue('wait_b');
CALL ratchet.wait('{wait_b}', '1 hour');
-- a job that is overdue is none, one that falls due is
SELECT ratchet.enqueue('late', queue => 'wait_overdue', run_at => clock_timestamp() - interval '1 hour', expires_in => '1 minute') IS NOT NULL AS made;
CALL ratchet.wait('{wait_overdue}', '20 ms');
SELECT ratchet.enqueue('k', queue => 'wait_soon', run_at => clock_timestamp() + interval '100 ms') IS NOT NULL AS made;
CALL ratchet.wait('{wait_soon}', '1 hour');
SELECT kind FROM ratchet.claim('wait_soon', 'w');
SELECT ratchet.enqueue('k', queue => 'wait_soon', run_at => clock_timestamp() + interval '100 ms') IS NOT NULL AS made;
SELECT kind FROM ratchet.claim('wait_soon', 'w', wait => '5 s');

-- await: the state after the timeout; the result once it is finished
CALL ratchet.await(:'job', '20 ms');
SELECT token FROM ratchet.claim('wait_b', 'w', wait => '1 s') \gset
CALL ratchet.await(:'job', '20 ms');
SELECT ratchet.complete(:'job', :'token', '{"answer": 42}');
CALL ratchet.await(:'job', '1 hour');
-- a failed job is finished
SELECT ratchet.enqueue('k', queue => 'wait_b', max_attempts => 1) AS failing \gset
SELECT ratchet.fail(id, token, 'no') FROM ratchet.claim('wait_b', 'w');
CALL ratchet.await(:'failing', '1 hour');
-- in the archive too
SELECT ratchet.configure_queue('wait_b', archive_after => '0');
SELECT ratchet.enqueue('k', queue => 'wait_b') AS archived \gset
SELECT ratchet.complete(id, token, '"kept"') FROM ratchet.claim('wait_b', 'w');
SELECT count(*) FROM ratchet.job WHERE id = :'archived';
CALL ratchet.await(:'archived', '1 hour');
-- an unknown one is an answer, at once
CALL ratchet.await('01900000-0000-7000-8000-000000000000', '1 hour');

-- claim waits only in READ COMMITTED, and only without an xid
BEGIN ISOLATION LEVEL REPEATABLE READ;
SET LOCAL ratchet.max_claim_wait = '1 h';
SELECT count(*) FROM ratchet.claim('wait_a', 'w', wait => '1 hour');
COMMIT;
BEGIN;
SET LOCAL ratchet.max_claim_wait = '1 h';
SELECT pg_current_xact_id() IS NOT NULL AS has_xid;
SELECT count(*) FROM ratchet.claim('wait_a', 'w', wait => '1 hour');
COMMIT;
-- and not longer than the setting says
SET ratchet.max_claim_wait = '20 ms';
SELECT count(*) FROM ratchet.claim('wait_a', 'w', wait => '1 hour');
SET ratchet.max_claim_wait = 0;
SELECT count(*) FROM ratchet.claim('wait_a', 'w', wait => '1 hour');
RESET ratchet.max_claim_wait;
SHOW ratchet.max_claim_wait;

-- rights
CREATE ROLE regress_wait_nobody;
CREATE ROLE regress_wait_worker;
CREATE ROLE regress_wait_producer;
CREATE ROLE regress_wait_other;
CREATE ROLE regress_wait_observer;
SELECT ratchet.grant_access('regress_wait_worker', 'work', 'wait_a');
SELECT ratchet.grant_access('regress_wait_producer', 'enqueue', 'wait_a');
SELECT ratchet.grant_access('regress_wait_other', 'enqueue', 'wait_a');
SELECT ratchet.grant_access('regress_wait_observer', 'observe', 'wait_a');
SET ROLE regress_wait_nobody;
CALL ratchet.wait('{wait_a}', '20 ms');
RESET ROLE;
GRANT USAGE ON SCHEMA ratchet TO regress_wait_nobody;
GRANT EXECUTE ON PROCEDURE ratchet.wait, ratchet.await TO regress_wait_nobody;
SET ROLE regress_wait_nobody;
CALL ratchet.wait('{wait_a}', '20 ms');
CALL ratchet.await('01900000-0000-7000-8000-000000000000', '1 hour');
RESET ROLE;
SET ROLE regress_wait_producer;
SELECT ratchet.enqueue('k', queue => 'wait_a') AS mine \gset
CALL ratchet.wait('{wait_a}', '20 ms');
CALL ratchet.await(:'mine', '20 ms');
CALL ratchet.await(:'job', '1 hour');
RESET ROLE;
SET ROLE regress_wait_other;
CALL ratchet.await(:'mine', '1 hour');
RESET ROLE;
SET ROLE regress_wait_observer;
CALL ratchet.wait('{wait_a}', '20 ms');
CALL ratchet.await(:'mine', '20 ms');
CALL ratchet.await(:'job', '1 hour');
SELECT waiting FROM ratchet.waiter_stat;
RESET ROLE;
SET ROLE regress_wait_worker;
CALL ratchet.wait('{wait_a}', '1 hour');
CALL ratchet.wait('{wait_a,wait_b}', '1 hour');
CALL ratchet.await(:'mine', '20 ms');
SELECT waiting FROM ratchet.waiter_stat;
RESET ROLE;
DROP OWNED BY regress_wait_nobody;
SELECT ratchet.revoke_access('regress_wait_worker', 'work', 'wait_a');
SELECT ratchet.revoke_access('regress_wait_producer', 'enqueue', 'wait_a');
SELECT ratchet.revoke_access('regress_wait_other', 'enqueue', 'wait_a');
SELECT ratchet.revoke_access('regress_wait_observer', 'observe', 'wait_a');
DROP ROLE regress_wait_nobody, regress_wait_worker, regress_wait_producer, regress_wait_other, regress_wait_observer;
