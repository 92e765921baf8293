-- Who can do what: PUBLIC nothing, and each access exactly what the contract says.
\set ON_ERROR_STOP on
BEGIN;
SELECT no_plan();

-- Every privilege on an object of ratchet that is not its owner's.
CREATE TEMP VIEW granted AS
SELECT CASE acl.grantee WHEN 0 THEN 'PUBLIC' ELSE acl.grantee::regrole::text END AS role,
       acl.privilege_type || CASE WHEN acl.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END AS privilege, what
  FROM (SELECT nspowner AS owner, coalesce(nspacl, acldefault('n', nspowner)) AS acl, 'schema'::text AS what
          FROM pg_namespace WHERE nspname = 'ratchet'
        UNION ALL
        SELECT relowner, coalesce(relacl, acldefault('r', relowner)), relname::text
          FROM pg_class WHERE relnamespace = 'ratchet'::regnamespace AND relkind IN ('r', 'p', 'v', 'm', 'f')
        UNION ALL
        SELECT relowner, attacl, relname || '.' || attname
          FROM pg_attribute JOIN pg_class c ON c.oid = attrelid WHERE relnamespace = 'ratchet'::regnamespace
        UNION ALL
        SELECT proowner, coalesce(proacl, acldefault('f', proowner)),
               proname || '(' || coalesce(format_type(proargtypes[0], NULL), '') || ')'
          FROM pg_proc WHERE pronamespace = 'ratchet'::regnamespace
        UNION ALL
        SELECT typowner, coalesce(typacl, acldefault('T', typowner)), 'type ' || typname
          FROM pg_type WHERE oid IN ('ratchet.job_state'::regtype, 'ratchet.claimed'::regtype)) o
  CROSS JOIN LATERAL aclexplode(o.acl) acl
 WHERE acl.grantee <> owner;

-- What a statement does for a role: 'ok', or the SQLSTATE of its refusal.
CREATE FUNCTION pg_temp.as_role(role text, statement text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    answer text = 'ok';
BEGIN
    BEGIN
        PERFORM set_config('role', role, true);
        EXECUTE statement;
    EXCEPTION WHEN OTHERS THEN
        answer := SQLSTATE;
    END;
    PERFORM set_config('role', 'none', true);
    RETURN answer;
END $$;

SELECT is_empty('SELECT * FROM granted', 'a fresh extension gives nothing to anybody, PUBLIC included');

CREATE ROLE regress_nobody;
CREATE ROLE regress_enqueue;
CREATE ROLE regress_work;
CREATE ROLE regress_operate;
CREATE ROLE regress_observe;
CREATE ROLE regress_member IN ROLE regress_work;
CREATE ROLE regress_outsider NOINHERIT IN ROLE regress_work;
CREATE ROLE regress_by_hand;

SELECT is(pg_temp.as_role('regress_nobody', statement), '42501', format('nobody: %s', statement))
  FROM unnest(ARRAY['SELECT ratchet.enqueue(''k'')', 'SELECT * FROM ratchet.claim(''default'', ''w'')', 'SELECT * FROM ratchet.jobs',
    'SELECT * FROM ratchet.job', 'SELECT * FROM ratchet.transition', 'CALL ratchet.run_maintenance()',
    'SELECT ratchet.grant_access(''regress_nobody'', ''operate'')', 'SELECT ''pending''::ratchet.job_state',
    'CREATE TABLE ratchet.mine ()']) statement;

SELECT ratchet.grant_access('regress_enqueue', 'enqueue', 'q');
SELECT ratchet.grant_access('regress_work', 'work', 'q');
SELECT ratchet.grant_access('regress_operate', 'operate', 'q');
SELECT ratchet.grant_access('regress_observe', 'observe', 'q');

-------------------------------------------------------------------------------
-- Each access
-------------------------------------------------------------------------------

-- With any access come the schema, the types and the functions that only tell about states and rights.
CREATE TEMP TABLE expected AS
SELECT 'regress_' || access AS role, privilege, what
  FROM unnest(ARRAY['enqueue', 'work', 'operate', 'observe']) access,
       (VALUES ('USAGE', 'schema'), ('USAGE', 'type job_state'), ('USAGE', 'type claimed'), ('SELECT', 'transition'),
               ('EXECUTE', 'has_access(text)'), ('EXECUTE', 'is_terminal(ratchet.job_state)'), ('EXECUTE', 'is_successful(ratchet.job_state)'),
               ('EXECUTE', 'was_executed(ratchet.job_state)'), ('EXECUTE', 'terminal_states()'), ('EXECUTE', 'transitions()'),
               ('EXECUTE', 'await(uuid)')) common(privilege, what);
INSERT INTO expected
SELECT 'regress_enqueue', 'EXECUTE', unnest(ARRAY['enqueue(text)', 'enqueue_many(text)', 'enqueue_many(jsonb)', 'cancel(uuid)'])
UNION ALL
SELECT 'regress_work', 'EXECUTE', unnest(ARRAY['claim(text)', 'claim(text[])', 'complete(uuid)', 'complete_many(uuid[])',
    'complete_and_claim(uuid[])', 'fail(uuid)', 'skip(uuid)', 'release(uuid)', 'heartbeat(uuid[])', 'progress(uuid)',
    'node_heartbeat(text)', 'try_lock(text)', 'renew_lock(text)', 'unlock(text)', 'wait(text[])'])
UNION ALL
SELECT 'regress_operate', 'EXECUTE', unnest(ARRAY['retry(uuid)', 'retry_many(text)', 'pause(uuid)', 'resume(uuid)', 'cancel(uuid)',
    'cancel_many(text)', 'rerun(uuid)', 'reschedule(uuid)', 'configure_queue(text)', 'pause_queue(text)', 'resume_queue(text)', 'forget(uuid)',
    'drain(text)', 'undrain(text)', 'maintenance_step(text)', 'run_maintenance()'])
UNION ALL
SELECT 'regress_observe', 'EXECUTE', unnest(ARRAY['worker_figures()', 'waiter_figures()'])
UNION ALL
SELECT 'regress_observe', 'SELECT', unnest(ARRAY['jobs', 'job_errors', 'queues', 'node', 'worker_stat', 'waiter_stat']);

SELECT set_eq(format('SELECT privilege || '' '' || what FROM granted WHERE role = %L', role),
              format('SELECT privilege || '' '' || what FROM expected WHERE role = %L', role), format('%s can do exactly this', role))
  FROM (SELECT DISTINCT role FROM expected) r ORDER BY role;
SELECT is_empty($$SELECT * FROM granted WHERE role NOT IN (SELECT role FROM expected)$$, 'nobody else got anything');
SELECT is_empty($$SELECT * FROM granted JOIN pg_class c ON c.relname = what AND relnamespace = 'ratchet'::regnamespace WHERE relkind <> 'v'$$,
    'no access gives anything on a table');
SELECT is_empty($$SELECT * FROM granted WHERE privilege LIKE '%GRANT OPTION'$$, 'none can be passed on');

-------------------------------------------------------------------------------
-- In which queue
-------------------------------------------------------------------------------

SELECT is(pg_temp.as_role('regress_enqueue', 'SELECT ratchet.enqueue(''k'', queue => ''q'')'), 'ok', 'enqueue in the granted queue');
SELECT is(pg_temp.as_role('regress_enqueue', 'SELECT ratchet.enqueue(''k'', queue => ''other'')'), '42501', 'and in no other');
SELECT is(pg_temp.as_role('regress_enqueue', 'SELECT ratchet.enqueue_many(''[{"kind": "k", "queue": "q"}, {"kind": "k", "queue": "other"}]'')'),
    '42501', 'not among others either');
SELECT is(pg_temp.as_role('regress_work', 'SELECT * FROM ratchet.claim(''other'', ''w'')'), '42501', 'claim likewise');
SELECT is(pg_temp.as_role('regress_work', 'SELECT * FROM ratchet.claim(ARRAY[''q'', ''other''], ''w'')'), '42501', 'nor when one of several is granted');
SELECT is(pg_temp.as_role('regress_operate', 'SELECT ratchet.pause_queue(''other'')'), '42501', 'pause_queue likewise');
SELECT is(pg_temp.as_role('regress_operate', 'SELECT ratchet.grant_access(''regress_operate'', ''work'')'), '42501', 'operators grant nothing');
SELECT is(pg_temp.as_role('regress_observe', 'SELECT * FROM ratchet.jobs'), 'ok', 'observers read the view');
SELECT is(pg_temp.as_role('regress_observe', 'SELECT token FROM ratchet.job'), '42501', 'but not the table');

-- By id, a job in a queue without the right counts as unknown, and nothing happens to it.
CREATE TEMP TABLE other AS SELECT ratchet.enqueue('k', queue => 'other') AS id;
CREATE FUNCTION pg_temp.bool_as(role text, call text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE answer text;
BEGIN
    PERFORM set_config('role', role, true);
    EXECUTE format('SELECT (ratchet.%s)::text', call) INTO answer;
    PERFORM set_config('role', 'none', true);
    RETURN coalesce(answer, 'NULL');
END $$;
SELECT is(pg_temp.bool_as(role, format(call, id)), answer, format('%s of a job in another queue', call))
  FROM other, (VALUES ('regress_operate', 'cancel(%L)', 'false'), ('regress_operate', 'pause(%L)', 'false'), ('regress_operate', 'forget(%L)', 'false'),
    ('regress_operate', 'reschedule(%L, now())', 'false'), ('regress_operate', 'rerun(%L)', 'NULL'), ('regress_enqueue', 'cancel(%L)', 'false'),
    ('regress_work', 'complete(%L, gen_random_uuid())', 'false'), ('regress_work', 'fail(%L, gen_random_uuid(), ''e'')', 'NULL')) v(role, call, answer);
SELECT is((SELECT state || ' ' || version FROM ratchet.job JOIN other USING (id)), 'pending 1', 'which is as it was');

-- has_access answers for the role that asks.
SELECT is(pg_temp.bool_as('regress_work', format('has_access(%s, %L)', queue, access)), answer, format('work on q: has_access(%s, %s)', queue, access))
  FROM (VALUES ('''q''', 'work', 'true'), ('''q''', 'enqueue', 'false'), ('''other''', 'work', 'false'), ('NULL', 'work', 'true'),
    ('NULL', 'operate', 'false')) v(queue, access, answer);
SELECT throws_ok('SELECT ratchet.has_access(''q'', ''nonsense'')', '22023', NULL, 'an unknown access is an error');

-------------------------------------------------------------------------------
-- Membership, privileges by hand, revoking
-------------------------------------------------------------------------------

SELECT is(pg_temp.as_role('regress_member', 'SELECT * FROM ratchet.claim(''q'', ''w'')'), 'ok', 'rights are inherited through membership');
SELECT is(pg_temp.as_role('regress_outsider', 'SELECT * FROM ratchet.claim(''q'', ''w'')'), '42501', 'but not by NOINHERIT');

GRANT USAGE ON SCHEMA ratchet TO regress_by_hand;
GRANT EXECUTE ON ALL ROUTINES IN SCHEMA ratchet TO regress_by_hand;
GRANT SELECT ON ratchet.jobs, ratchet.job_errors, ratchet.queues, ratchet.node TO regress_by_hand;
SELECT is(pg_temp.as_role('regress_by_hand', 'SELECT ' || call), '42501', format('EXECUTE by hand alone is not enough for %s', call))
  FROM unnest(ARRAY['ratchet.enqueue(''k'')', 'ratchet.enqueue(NULL)', 'ratchet.claim(''q'', ''w'')', 'ratchet.complete(NULL, NULL)', 'ratchet.cancel(gen_random_uuid())',
    'ratchet.retry(NULL)', 'ratchet.drain()', 'ratchet.try_lock(''l'', ''o'', ''1 min'')', 'ratchet.node_heartbeat(''n'')', 'ratchet.maintenance_step(''no such duty'')', 'ratchet.grant_access(''regress_by_hand'', ''work'')']) call;
-- There is something to see in each of the views.
SELECT ratchet.configure_queue('q', priority => 1);
SELECT ratchet.node_heartbeat('n');
SELECT ratchet.enqueue('broken', queue => 'broken');
SELECT ratchet.fail(id, token, 'e') FROM ratchet.claim('broken', 'w');
SELECT isnt_empty(format('SELECT 1 FROM ratchet.%I', view), format('ratchet.%s has rows', view))
  FROM unnest(ARRAY['jobs', 'job_errors', 'queues', 'node']) view;
SELECT is(pg_temp.as_role('regress_by_hand', format('SELECT 1/count(*) FROM ratchet.%I', view)), '22012',
          format('SELECT on ratchet.%s by hand shows none to a role without access', view))
  FROM unnest(ARRAY['jobs', 'job_errors', 'queues', 'node']) view;

SELECT throws_ok('DROP ROLE regress_work', '2BP01', NULL, 'a role with rights cannot be dropped');
SELECT ratchet.grant_access('regress_work', 'work', 'second');
SELECT ratchet.grant_access('regress_work', 'work', 'second');
SELECT ratchet.revoke_access('regress_work', 'work', 'q');
SELECT is(pg_temp.as_role('regress_work', 'SELECT * FROM ratchet.claim(''q'', ''w'')'), '42501', 'a revoked queue is closed');
SELECT is(pg_temp.as_role('regress_work', 'SELECT * FROM ratchet.claim(''second'', ''w'')'), 'ok', 'the other one stays open');
SELECT ratchet.revoke_access('regress_work', 'work', 'second');
SELECT is_empty('SELECT * FROM granted WHERE role = ''regress_work''', 'with the last right all privileges go');
SELECT lives_ok('DROP ROLE regress_member, regress_outsider, regress_work', 'and the role can be dropped');

-- Two accesses overlap in cancel: taking one leaves the other whole.
SELECT ratchet.grant_access('regress_operate', 'enqueue');
SELECT ratchet.revoke_access('regress_operate', 'operate', 'q');
SELECT set_eq($$SELECT privilege || ' ' || what FROM granted WHERE role = 'regress_operate'$$,
              $$SELECT privilege || ' ' || what FROM expected WHERE role = 'regress_enqueue'$$, 'one of two accesses is left');
SELECT is(pg_temp.as_role('regress_operate', 'SELECT ratchet.enqueue(''k'', queue => ''any'')'), 'ok', 'NULL means every queue');

SELECT throws_ok('SELECT ratchet.grant_access(''regress_enqueue'', ''everything'')', '22023', NULL, 'an unknown access cannot be granted');
SELECT throws_ok('SELECT ratchet.grant_access(4294967295::oid::regrole, ''work'')', '42704', NULL, 'nor anything to an unknown role');
SELECT throws_ok('SELECT ratchet.grant_access(NULL, ''work'')', '22004', NULL, 'nor to nobody');

SELECT * FROM finish();
ROLLBACK;
