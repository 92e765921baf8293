-- Access: who may do what, in which queue, and that nothing leads around it.

SET client_min_messages = warning;
CREATE SCHEMA access_test;
GRANT USAGE ON SCHEMA access_test TO PUBLIC;
CREATE ROLE regress_acc_none;
CREATE ROLE regress_acc_enqueue;
CREATE ROLE regress_acc_work;
CREATE ROLE regress_acc_operate;
CREATE ROLE regress_acc_observe;
CREATE ROLE regress_acc_all;

-- What a query answers to a role: its one value, or SQLSTATE and message.
CREATE FUNCTION access_test.as_role(role text, query text) RETURNS text LANGUAGE plpgsql AS
$$
DECLARE
    answer text;
BEGIN
    PERFORM set_config('role', 'regress_acc_' || role, true);
    EXECUTE query INTO answer;
    PERFORM set_config('role', 'none', true);
    RETURN coalesce(answer, 'null');
EXCEPTION WHEN OTHERS THEN
    RETURN SQLSTATE || ': ' || SQLERRM;
END
$$;
-- A call of every function, all arguments null.
CREATE VIEW access_test.call AS
SELECT p.oid, proname::text AS name, format('%s ratchet.%I(%s)', CASE prokind WHEN 'p' THEN 'CALL' ELSE 'SELECT count(*)::text FROM' END, proname,
           (SELECT string_agg('NULL::' || format_type(t, NULL), ', ' ORDER BY n) FROM unnest(proargtypes) WITH ORDINALITY u(t, n))) AS call
  FROM pg_proc p
 WHERE pronamespace = 'ratchet'::regnamespace AND prorettype <> 'trigger'::regtype;

-------------------------------------------------------------------------------
-- PUBLIC has nothing
-------------------------------------------------------------------------------

SELECT 'schema' AS what, nspname AS name FROM pg_namespace WHERE nspname = 'ratchet' AND has_schema_privilege('regress_acc_none', oid, 'USAGE, CREATE')
UNION ALL
SELECT 'routine', proname FROM pg_proc WHERE pronamespace = 'ratchet'::regnamespace AND has_function_privilege('regress_acc_none', oid, 'EXECUTE')
UNION ALL
SELECT 'relation', relname FROM pg_class WHERE relnamespace = 'ratchet'::regnamespace AND relkind IN ('r', 'p', 'v', 'm', 'f')
   AND has_table_privilege('regress_acc_none', oid, 'SELECT, INSERT, UPDATE, DELETE, TRUNCATE, REFERENCES, TRIGGER')
UNION ALL
SELECT 'column', relname FROM pg_class WHERE relnamespace = 'ratchet'::regnamespace AND relkind IN ('r', 'p', 'v')
   AND has_any_column_privilege('regress_acc_none', oid, 'SELECT, INSERT, UPDATE, REFERENCES')
UNION ALL
SELECT 'type', typname FROM pg_type WHERE typnamespace = 'ratchet'::regnamespace AND typname IN ('job_state', 'claimed') AND has_type_privilege('regress_acc_none', oid, 'USAGE');
-- Everything runs with the rights of its caller, and never in a parallel worker.
SELECT proname FROM pg_proc WHERE pronamespace = 'ratchet'::regnamespace AND (prosecdef OR proparallel <> 'u') AND prokind = 'f';
SELECT proname FROM pg_proc WHERE pronamespace = 'ratchet'::regnamespace AND prosecdef;
SELECT DISTINCT access_test.as_role('none', call) FROM access_test.call;
-- With EXECUTE by hand but no access the functions themselves say no, before they look at anything: the arguments are all null.
BEGIN;
GRANT USAGE ON SCHEMA ratchet TO regress_acc_none;
GRANT EXECUTE ON ALL ROUTINES IN SCHEMA ratchet TO regress_acc_none;
GRANT USAGE ON TYPE ratchet.job_state, ratchet.claimed TO regress_acc_none;
SELECT regexp_replace(access_test.as_role('none', call), '"(enqueue|work|operate|observe)"', '"..."') AS answer, string_agg(name, ', ' ORDER BY name)
  FROM access_test.call GROUP BY 1 ORDER BY 1;
ROLLBACK;

-------------------------------------------------------------------------------
-- What each access gives
-------------------------------------------------------------------------------

SELECT ratchet.grant_access('regress_acc_enqueue', 'enqueue', 'acc_a'), ratchet.grant_access('regress_acc_work', 'work', 'acc_a'),
       ratchet.grant_access('regress_acc_operate', 'operate', 'acc_a'), ratchet.grant_access('regress_acc_observe', 'observe', 'acc_a');
SELECT ratchet.grant_access('regress_acc_all', access) FROM unnest('{enqueue,work,operate,observe}'::text[]) access;
-- Granting again changes nothing.
SELECT ratchet.grant_access('regress_acc_work', 'work', 'acc_a');
SELECT role_name, access, queue FROM ratchet.access WHERE role_name LIKE 'regress\_acc%' ORDER BY 1, 2, 3;
SELECT role, string_agg(DISTINCT name, ', ' ORDER BY name) AS may_call
  FROM unnest('{enqueue,work,operate,observe}'::text[]) role, access_test.call
 WHERE has_function_privilege('regress_acc_' || role, oid, 'EXECUTE')
   AND name NOT IN ('has_access', 'is_terminal', 'is_successful', 'was_executed', 'terminal_states', 'transitions')
 GROUP BY role ORDER BY role;
-- The helpers are for all of them; the guard and the granting for none.
SELECT name FROM access_test.call, unnest('{enqueue,work,operate,observe}'::text[]) role
 WHERE name IN ('has_access', 'is_terminal', 'is_successful', 'was_executed', 'terminal_states', 'transitions')
   AND NOT has_function_privilege('regress_acc_' || role, oid, 'EXECUTE');
SELECT proname FROM pg_proc WHERE pronamespace = 'ratchet'::regnamespace AND has_function_privilege('regress_acc_all', oid, 'EXECUTE')
   AND (prorettype = 'trigger'::regtype OR proname IN ('grant_access', 'revoke_access'));
SELECT role, string_agg(relname, ', ' ORDER BY relname) AS may_read
  FROM unnest('{enqueue,work,operate,observe}'::text[]) role, pg_class
 WHERE relnamespace = 'ratchet'::regnamespace AND relkind IN ('r', 'p', 'v') AND has_any_column_privilege('regress_acc_' || role, oid, 'SELECT')
 GROUP BY role ORDER BY role;
-- Not even all four together write to anything, or read a table.
SELECT relname, p FROM pg_class, unnest('{INSERT,UPDATE,DELETE,TRUNCATE,REFERENCES,TRIGGER}'::text[]) p
 WHERE relnamespace = 'ratchet'::regnamespace AND relkind IN ('r', 'p', 'v') AND has_table_privilege('regress_acc_all', oid, p);
SELECT relname FROM pg_class WHERE relnamespace = 'ratchet'::regnamespace AND relkind IN ('r', 'p') AND has_any_column_privilege('regress_acc_all', oid, 'SELECT');
SELECT access_test.as_role('all', query)
  FROM unnest(ARRAY['SELECT token::text FROM ratchet.job', 'INSERT INTO ratchet.job SELECT * FROM ratchet.job', 'UPDATE ratchet.job SET priority = 1', 'DELETE FROM ratchet.job',
                    'TRUNCATE ratchet.job', 'LOCK TABLE ratchet.job IN ACCESS EXCLUSIVE MODE', 'UPDATE ratchet.queues SET paused = true', 'DELETE FROM ratchet.job_errors', 'DELETE FROM ratchet.access',
                    'CREATE TABLE ratchet.mine ()', 'ALTER TABLE ratchet.job DISABLE TRIGGER zz_guard', 'CREATE TRIGGER t BEFORE INSERT ON ratchet.job EXECUTE FUNCTION suppress_redundant_updates_trigger()',
                    'DROP FUNCTION ratchet.is_terminal', 'SET session_replication_role = replica']) query;
SELECT a.attrelid::regclass AS view_with_token FROM pg_attribute a JOIN pg_class c ON c.oid = attrelid
 WHERE relnamespace = 'ratchet'::regnamespace AND relkind = 'v' AND attname LIKE '%token%';
SELECT access_test.as_role('all', query)
  FROM unnest(ARRAY['SELECT ratchet.grant_access(''regress_acc_none'', ''work'')', 'SELECT ratchet.revoke_access(''regress_acc_work'', ''work'')']) query;

SELECT role, access, access_test.as_role(role, format('SELECT ratchet.has_access(''acc_a'', %L)', access)) AS acc_a,
       access_test.as_role(role, format('SELECT ratchet.has_access(''acc_b'', %L)', access)) AS acc_b, access_test.as_role(role, format('SELECT ratchet.has_access(NULL, %L)', access)) AS any
  FROM unnest('{enqueue,work,operate,observe,all}'::text[]) role, unnest('{enqueue,work,operate,observe}'::text[]) access
 ORDER BY role, access;
SELECT bool_and(ratchet.has_access('acc_b', access)) AS superuser FROM unnest('{enqueue,work,operate,observe}'::text[]) access;

-------------------------------------------------------------------------------
-- One queue and another
-------------------------------------------------------------------------------

CREATE TABLE access_test.job (queue text, state text, id uuid, token uuid);
INSERT INTO access_test.job SELECT q, s, ratchet.enqueue(s, queue => q, payload => jsonb_build_object('secret', q), run_at => '2024-01-01 00:00Z', max_attempts => 1)
  FROM unnest('{acc_a,acc_b}'::text[]) q, unnest('{running,failed,succeeded,canceled,archived}'::text[]) s;
-- One claim, and so one token, for each.
DO
$$
BEGIN
    FOR i IN 1..10 LOOP
        UPDATE access_test.job j SET token = c.token FROM ratchet.claim('{acc_a,acc_b}'::text[], 'w') c WHERE c.id = j.id;
    END LOOP;
END
$$;
SELECT ratchet.fail(id, token, 'failed in ' || queue) FROM access_test.job WHERE state = 'failed';
SELECT ratchet.complete(id, token) FROM access_test.job WHERE state = 'succeeded';
SELECT ratchet.cancel(id) FROM access_test.job WHERE state = 'canceled';
SELECT ratchet.configure_queue(q, archive_after => '0') FROM unnest('{acc_a,acc_b}'::text[]) q;
SELECT ratchet.complete(id, token) FROM access_test.job WHERE state = 'archived';
SELECT queue, count(*) AS archived FROM ratchet.job_archive WHERE queue LIKE 'acc\__' GROUP BY 1 ORDER BY 1;
INSERT INTO access_test.job SELECT q, 'pending', ratchet.enqueue('pending', queue => q) FROM unnest('{acc_a,acc_b}'::text[]) q;
GRANT SELECT ON access_test.job TO PUBLIC;
SELECT ratchet.configure_queue(q, max_attempts => 5, archive_after => '1 h') FROM unnest('{acc_a,acc_b}'::text[]) q;

-- A queue that is named needs the right to it.
SELECT role, access_test.as_role(role, 'SELECT count(*)::text FROM ratchet.' || call) AS answer
  FROM (VALUES ('enqueue', $$enqueue('k', queue => 'acc_b', idempotency_key => 'i')$$), ('enqueue', $$enqueue('k')$$), ('enqueue', $$enqueue_many('k', '{1}', queue => 'acc_b')$$),
               ('enqueue', $$enqueue_many('[{"kind": "k", "queue": "acc_a"}, {"kind": "k", "queue": "acc_b"}]')$$), ('enqueue', $$claim('acc_a', 'w')$$),
               ('work', $$claim('acc_b', 'w')$$), ('work', $$claim('{acc_a,acc_b}'::text[], 'w')$$), ('work', $$complete_and_claim('{}', '{}', 'acc_b', 'w')$$), ('work', $$enqueue('k', queue => 'acc_a')$$),
               ('operate', $$configure_queue('acc_b', priority => 1)$$), ('operate', $$pause_queue('acc_b')$$), ('operate', $$resume_queue('acc_b')$$), ('operate', $$cancel_many('acc_b')$$),
               ('operate', $$retry_many('acc_b')$$), ('operate', $$claim('acc_a', 'w')$$), ('observe', $$jobs$$), ('observe', $$cancel_many('acc_a')$$), ('work', $$jobs$$), ('enqueue', $$jobs$$)) v(role, call);
SELECT count(*) AS made FROM ratchet.job WHERE queue IN ('acc_a', 'acc_b') AND kind = 'k';
-- By id, what is in a queue without the right counts as unknown; the token does not help.
SELECT queue, call, access_test.as_role(role, format('SELECT %s FROM access_test.job WHERE queue = %L AND state = %L', call, queue, state)) AS answer
  FROM (VALUES (1, 'work', 'running', 'ratchet.progress(id, token, 0.5)'), (2, 'work', 'running', '(SELECT status FROM ratchet.heartbeat(ARRAY[id], ARRAY[token]))'),
               (3, 'work', 'canceled', '(SELECT status FROM ratchet.heartbeat(ARRAY[id], ARRAY[token]))'), (4, 'operate', 'pending', 'ratchet.reschedule(id, priority => 1)'),
               (5, 'operate', 'pending', 'ratchet.pause(id)'), (6, 'operate', 'pending', 'ratchet.resume(id)'), (7, 'operate', 'pending', 'ratchet.cancel(id)'),
               (8, 'operate', 'failed', 'ratchet.retry(id)'), (9, 'operate', 'succeeded', 'ratchet.rerun(id) IS NOT NULL'), (10, 'operate', 'succeeded', 'ratchet.forget(id)'), (11, 'operate', 'archived', 'ratchet.rerun(id) IS NOT NULL'),
               (12, 'operate', 'archived', 'ratchet.forget(id)')) v(n, role, state, call),
       unnest('{acc_a,acc_b}'::text[]) queue
 ORDER BY queue, n;
SELECT access_test.as_role('work', format('SELECT %s FROM access_test.job WHERE queue = ''acc_b'' AND state = ''running''', call)) AS answer
  FROM unnest(ARRAY['ratchet.complete(id, token)', 'ratchet.fail(id, token, ''e'')', 'ratchet.skip(id, token)', 'ratchet.release(id, token)', '(SELECT count(*) FROM ratchet.complete_many(ARRAY[id], ARRAY[token]))']) call;
SELECT regexp_replace(access_test.as_role('work', 'SELECT ratchet.complete(id, token, strict => true) FROM access_test.job WHERE queue = ''acc_b'' AND state = ''running'''), '[0-9a-f-]{36}', 'ID') AS strict;
SELECT j.state, r.state, version FROM access_test.job j JOIN ratchet.job r USING (id, queue) WHERE queue = 'acc_b' ORDER BY 1;
-- A worker cannot finish what it did not claim.
SELECT access_test.as_role('work', 'SELECT ratchet.complete(id, gen_random_uuid()) FROM access_test.job WHERE queue = ''acc_a'' AND state = ''running''') AS guessed,
       access_test.as_role('work', 'SELECT ratchet.complete(a.id, b.token) FROM access_test.job a, access_test.job b WHERE a.queue = ''acc_a'' AND a.state = ''running'' AND b.queue = ''acc_a'' AND b.state = ''failed'' AND a.token <> b.token') AS other;
-- Many at once touch only the queues one has.
INSERT INTO access_test.job SELECT q, 'many', ratchet.enqueue('many', queue => q, tags => '{t}') FROM unnest('{acc_a,acc_b}'::text[]) q;
SELECT access_test.as_role('operate', 'SELECT ratchet.cancel_many(kind => ''many'', tag => ''t'')');
SELECT queue, r.state FROM access_test.job j JOIN ratchet.job r USING (id, queue) WHERE j.state = 'many' ORDER BY 1;
SELECT ratchet.pause(id), ratchet.cancel(id) FROM access_test.job WHERE state = 'many' AND queue = 'acc_b';

-------------------------------------------------------------------------------
-- Producers and their own jobs
-------------------------------------------------------------------------------

CREATE ROLE regress_acc_other;
SELECT ratchet.grant_access('regress_acc_other', 'enqueue', 'acc_a'), ratchet.grant_access('regress_acc_other', 'enqueue', 'acc_b');
INSERT INTO access_test.job SELECT 'acc_a', 'own', access_test.as_role('enqueue', 'SELECT ratchet.enqueue(''own'', queue => ''acc_a'')')::uuid;
INSERT INTO access_test.job SELECT 'acc_a', 'other', access_test.as_role('other', 'SELECT ratchet.enqueue(''other'', queue => ''acc_a'')')::uuid;
INSERT INTO access_test.job SELECT 'acc_b', 'left', access_test.as_role('other', 'SELECT ratchet.enqueue(''left'', queue => ''acc_b'')')::uuid;
SELECT kind, enqueued_by FROM ratchet.job WHERE kind IN ('own', 'other', 'left') AND queue LIKE 'acc\__' ORDER BY kind;
SELECT role, what, access_test.as_role(role, format('SELECT ratchet.cancel(id) FROM access_test.job WHERE state = %L', what)) AS canceled
  FROM (VALUES (1, 'enqueue', 'other'), (2, 'other', 'own'), (3, 'work', 'own'), (4, 'observe', 'own'), (5, 'enqueue', 'own'), (6, 'enqueue', 'own'), (7, 'operate', 'other'), (8, 'operate', 'left')) v(n, role, what)
 ORDER BY n;
-- Once the right to the queue is gone, so is the job in it.
SELECT ratchet.revoke_access('regress_acc_other', 'enqueue', 'acc_b');
SELECT access_test.as_role('other', 'SELECT ratchet.cancel(id) FROM access_test.job WHERE state = ''left''') AS right_revoked;
SELECT ratchet.cancel(id) FROM access_test.job WHERE state = 'left';

-------------------------------------------------------------------------------
-- What observers see
-------------------------------------------------------------------------------

SELECT role, access_test.as_role(role, query) AS answer
  FROM unnest('{observe,all}'::text[]) role,
       unnest(ARRAY['SELECT string_agg(DISTINCT queue, '','' ORDER BY queue) FROM ratchet.jobs WHERE queue LIKE ''acc\__''', 'SELECT string_agg(DISTINCT payload->>''secret'', '','' ORDER BY payload->>''secret'') FROM ratchet.jobs WHERE queue LIKE ''acc\__''',
                    'SELECT string_agg(error, '','' ORDER BY error) FROM ratchet.job_errors WHERE queue LIKE ''acc\__''', 'SELECT string_agg(queue, '','' ORDER BY queue) FROM ratchet.queues WHERE queue LIKE ''acc\__''']) query
 ORDER BY 1, query;
-- A cheap function of the caller's own sees no row that the filter has not passed.
CREATE FUNCTION access_test.leak(anyelement) RETURNS boolean LANGUAGE plpgsql COST 0.0000001 AS $$ BEGIN IF $1::text LIKE '%acc\_b%' THEN RAISE WARNING 'leaked %', $1; END IF; RETURN true; END $$;
SET ROLE regress_acc_observe;
SELECT count(*) > 0 AS some FROM ratchet.jobs WHERE access_test.leak(payload);
SELECT count(*) FROM ratchet.jobs WHERE access_test.leak(queue) AND queue = 'acc_b';
SELECT count(*) FROM ratchet.job_errors WHERE access_test.leak(error);
SELECT count(*) FROM ratchet.queues WHERE access_test.leak(queue);
SELECT count(*) FROM ratchet.jobs WHERE 1 / (CASE WHEN queue = 'acc_b' THEN 0 ELSE 1 END) > 5;
RESET ROLE;

-------------------------------------------------------------------------------
-- Membership, SET ROLE, SECURITY DEFINER
-------------------------------------------------------------------------------

CREATE ROLE regress_acc_member IN ROLE regress_acc_enqueue;
CREATE ROLE regress_acc_deep IN ROLE regress_acc_member;
CREATE ROLE regress_acc_noinherit NOINHERIT IN ROLE regress_acc_enqueue;
SELECT role, access_test.as_role(role, 'SELECT ratchet.has_access(''acc_a'', ''enqueue'')') AS has_access,
       regexp_replace(access_test.as_role(role, 'SELECT ratchet.enqueue(''member'', queue => ''acc_a'')'), '^[0-9a-f-]{36}$', 'ID') AS enqueue
  FROM unnest('{member,deep,noinherit}'::text[]) role;
SELECT enqueued_by FROM ratchet.job WHERE queue = 'acc_a' AND kind = 'member' ORDER BY 1;
-- A member has the group's rights, and so to the group's jobs; not the other way round.
INSERT INTO access_test.job SELECT queue, 'by ' || enqueued_by, id FROM ratchet.job WHERE queue = 'acc_a' AND enqueued_by IN ('regress_acc_deep', 'regress_acc_member');
SELECT role, what, access_test.as_role(role, format('SELECT ratchet.cancel(id) FROM access_test.job WHERE state = ''by regress_acc_'' || %L', what)) AS canceled
  FROM (VALUES (1, 'enqueue', 'member'), (2, 'member', 'deep'), (3, 'deep', 'member'), (4, 'deep', 'deep')) v(n, role, what) ORDER BY n;
SET SESSION AUTHORIZATION regress_acc_noinherit;
SELECT ratchet.enqueue('k', queue => 'acc_a');
SET ROLE regress_acc_enqueue;
SELECT ratchet.enqueue('set role', queue => 'acc_a') IS NOT NULL AS enqueued;
RESET SESSION AUTHORIZATION;
SELECT enqueued_by FROM ratchet.job WHERE queue = 'acc_a' AND kind = 'set role';
-- A wrapper counts as its owner, whoever calls it.
CREATE FUNCTION access_test.wrapper() RETURNS boolean LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog AS $$ SELECT ratchet.enqueue('wrapped', queue => 'acc_a') IS NOT NULL $$;
ALTER FUNCTION access_test.wrapper() OWNER TO regress_acc_enqueue;
CREATE FUNCTION access_test.powerless() RETURNS boolean LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog AS $$ SELECT ratchet.enqueue('powerless', queue => 'acc_a') IS NOT NULL $$;
ALTER FUNCTION access_test.powerless() OWNER TO regress_acc_work;
SELECT access_test.as_role('none', 'SELECT access_test.wrapper()') AS wrapper, access_test.as_role('all', 'SELECT access_test.powerless()') AS powerless;
SELECT kind, enqueued_by FROM ratchet.job WHERE queue = 'acc_a' AND kind IN ('wrapped', 'powerless') ORDER BY 1, 2;

-------------------------------------------------------------------------------
-- Taking rights back, and roles that go
-------------------------------------------------------------------------------

CREATE ROLE regress_acc_gone;
SELECT ratchet.grant_access('regress_acc_gone', 'enqueue', 'acc_a'), ratchet.grant_access('regress_acc_gone', 'enqueue', 'acc_b'), ratchet.grant_access('regress_acc_gone', 'observe', 'acc_a');
SELECT ratchet.revoke_access('regress_acc_gone', 'enqueue', 'acc_a');
SELECT access_test.as_role('gone', 'SELECT ratchet.enqueue(''k'', queue => ''acc_a'')') AS one_queue_less, access_test.as_role('gone', 'SELECT ratchet.has_access(''acc_b'', ''enqueue'')') AS other_stays;
-- What was not granted this way is not taken back: all queues are one right, each queue another.
SELECT ratchet.revoke_access('regress_acc_gone', 'enqueue');
SELECT access_test.as_role('gone', 'SELECT ratchet.has_access(''acc_b'', ''enqueue'')') AS stays;
SELECT ratchet.revoke_access('regress_acc_gone', 'enqueue', 'acc_b');
SELECT access_test.as_role('gone', 'SELECT ratchet.enqueue(''k'', queue => ''acc_b'')') AS enqueue, access_test.as_role('gone', 'SELECT count(*) >= 0 FROM ratchet.jobs') AS observe;
SELECT ratchet.revoke_access('regress_acc_gone', 'observe', 'acc_a');
SELECT access_test.as_role('gone', 'SELECT count(*) >= 0 FROM ratchet.jobs') AS observe;
DROP ROLE regress_acc_gone;
-- Rights hold the role; taken by DROP OWNED, they leave a row that counts for nothing.
CREATE ROLE regress_acc_gone;
SELECT ratchet.grant_access('regress_acc_gone', 'enqueue');
\set VERBOSITY terse
DROP ROLE regress_acc_gone;
\set VERBOSITY default
DROP OWNED BY regress_acc_gone;
SELECT access_test.as_role('gone', 'SELECT ratchet.enqueue(''k'', queue => ''acc_a'')') AS after_drop_owned;
DROP ROLE regress_acc_gone;
SELECT access, queue FROM ratchet.access WHERE role_name = 'regress_acc_gone';
-- A new role of the same name can call nothing.
CREATE ROLE regress_acc_gone;
SELECT DISTINCT access_test.as_role('gone', call) FROM access_test.call;
DROP ROLE regress_acc_gone;
DELETE FROM ratchet.access WHERE role_name = 'regress_acc_gone';
-- A role under another name is another one.
CREATE ROLE regress_acc_gone;
SELECT ratchet.grant_access('regress_acc_gone', 'enqueue');
ALTER ROLE regress_acc_gone RENAME TO regress_acc_renamed;
SELECT access_test.as_role('renamed', 'SELECT ratchet.enqueue(''k'', queue => ''acc_a'')') AS renamed;
ALTER ROLE regress_acc_renamed RENAME TO regress_acc_gone;
SELECT access_test.as_role('gone', 'SELECT ratchet.has_access(''acc_a'', ''enqueue'')') AS back;
SELECT ratchet.revoke_access('regress_acc_gone', 'enqueue');
DROP ROLE regress_acc_gone;
-- A rolled-back grant, and one in a subtransaction, are gone at once.
BEGIN;
SELECT ratchet.grant_access('regress_acc_none', 'enqueue', 'acc_a');
SELECT access_test.as_role('none', 'SELECT ratchet.has_access(''acc_a'', ''enqueue'')') AS granted;
SAVEPOINT s;
SELECT ratchet.revoke_access('regress_acc_none', 'enqueue', 'acc_a');
SELECT access_test.as_role('none', 'SELECT ratchet.has_access(''acc_a'', ''enqueue'')') AS revoked;
ROLLBACK TO s;
SELECT access_test.as_role('none', 'SELECT ratchet.has_access(''acc_a'', ''enqueue'')') AS granted_again;
ROLLBACK;
SELECT access_test.as_role('none', 'SELECT ratchet.has_access(''acc_a'', ''enqueue'')') AS none;
-- A name that wants to be SQL.
CREATE ROLE "regress_acc_""; DROP TABLE ratchet.job; --";
SELECT ratchet.grant_access('"regress_acc_""; DROP TABLE ratchet.job; --"', 'work', 'it''s; --"');
SELECT access_test.as_role('"; DROP TABLE ratchet.job; --', 'SELECT count(*)::text FROM ratchet.claim(''it''''s; --"'', ''w'')') AS claimed;
SELECT ratchet.revoke_access('"regress_acc_""; DROP TABLE ratchet.job; --"', 'work', 'it''s; --"');
DROP ROLE "regress_acc_""; DROP TABLE ratchet.job; --";

-------------------------------------------------------------------------------
-- Somebody else's functions and operators in the search_path, and temporary tables
-------------------------------------------------------------------------------

CREATE SCHEMA access_evil;
GRANT USAGE ON SCHEMA access_evil TO PUBLIC;
CREATE FUNCTION access_evil.boo() RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'somebody else''s code was called as %', current_user; END $$;
DO
$$
DECLARE
    t text;
    op text;
BEGIN
    FOREACH t IN ARRAY '{ratchet.job_state,text,uuid,int,bigint,timestamptz,interval,jsonb,text[],name,oid,regclass,boolean,char}'::text[] LOOP
        EXECUTE format('CREATE FUNCTION access_evil.two(%s, %s) RETURNS boolean LANGUAGE sql AS ''SELECT access_evil.boo()''', t, t);
        FOREACH op IN ARRAY '{=,<>,<,<=,>,>=,+,-,||,@>,~}'::text[] LOOP
            EXECUTE format('CREATE OPERATOR access_evil.%s (LEFTARG = %s, RIGHTARG = %s, FUNCTION = access_evil.two)', op, t, t);
        END LOOP;
    END LOOP;
    FOREACH t IN ARRAY ARRAY['now()', 'clock_timestamp()', 'statement_timestamp()', 'count(bigint)', 'unnest(text[])', 'to_regclass(text)', 'format(text)', 'is_terminal(ratchet.job_state)',
                             'has_access(text, text)', 'job_state(text)', 'quote_ident(text)', 'min(text)', 'max(text)', 'date_trunc(text, timestamptz)', 'generate_series(int, int)', 'lower(text)'] LOOP
        EXECUTE format('CREATE FUNCTION access_evil.%s RETURNS boolean LANGUAGE sql AS ''SELECT access_evil.boo()''', t);
    END LOOP;
END
$$;
SELECT id AS own FROM access_test.job WHERE queue = 'acc_a' AND state = 'running' \gset
SELECT token AS own_token FROM access_test.job WHERE queue = 'acc_a' AND state = 'running' \gset
SELECT id AS failed FROM access_test.job WHERE queue = 'acc_b' AND state = 'failed' \gset
SELECT id AS succeeded FROM access_test.job WHERE queue = 'acc_b' AND state = 'succeeded' \gset
CREATE TEMP TABLE job (id int);
CREATE TEMP TABLE access (role_name text);
CREATE TEMP TABLE queue (queue text);
CREATE TEMP TABLE business_key (key text);
SET search_path = access_evil, pg_temp, pg_catalog, ratchet;
SELECT 'a'::text = 'a'::text;
SELECT is_terminal('pending');
SELECT ratchet.enqueue('evil', queue => 'acc_a', business_key => 'evil', idempotency_key => 'evil', tags => '{evil}') IS NOT NULL AS enqueue;
SELECT ratchet.enqueue_many('[{"kind": "evil", "queue": "acc_a", "expires_in": "1 h"}]') IS NOT NULL AS enqueue_many;
SELECT ratchet.configure_queue('acc_a', lease => '1 min');
SELECT ratchet.pause_queue('acc_a'), ratchet.resume_queue('acc_a');
SELECT kind IS NOT NULL AS claim FROM ratchet.claim('acc_a', 'w', kinds => '{evil}') LIMIT 1;
SELECT ratchet.progress(:'own', :'own_token', 0.5), ratchet.complete(:'own', :'own_token');
SELECT ratchet.pause(:'failed'), ratchet.resume(:'failed'), ratchet.retry(:'failed'), ratchet.reschedule(:'failed', priority => 5), ratchet.cancel(:'failed');
SELECT ratchet.rerun(:'succeeded') IS NOT NULL AS rerun;
SELECT ratchet.retry_many(kind => 'evil'), ratchet.cancel_many(tag => 'evil');
SELECT ratchet.grant_access('regress_acc_none', 'work', 'acc_a'), ratchet.revoke_access('regress_acc_none', 'work', 'acc_a');
SELECT ratchet.maintenance_step('recover') IS NOT NULL AS recover, ratchet.maintenance_step('timeout') IS NOT NULL AS timeout, ratchet.maintenance_step('expire') IS NOT NULL AS expire,
       ratchet.maintenance_step('archive') IS NOT NULL AS archive, ratchet.maintenance_step('purge') IS NOT NULL AS purge, ratchet.maintenance_step('keys') IS NOT NULL AS keys, ratchet.maintenance_step('guard') IS NOT NULL AS guard;
CALL ratchet.run_maintenance();
SELECT ratchet.forget(:'succeeded');
SELECT queue IS NOT NULL AS jobs FROM ratchet.jobs LIMIT 1;
SELECT to_state FROM ratchet.transition LIMIT 1;
SET ROLE regress_acc_all;
SELECT ratchet.enqueue('evil', queue => 'acc_a') IS NOT NULL AS enqueue;
SELECT ratchet.cancel_many('acc_a') IS NOT NULL AS cancel_many;
RESET ROLE;
RESET search_path;
SELECT count(*) AS caught_by_temp_tables FROM pg_temp.job;
DROP TABLE pg_temp.job, pg_temp.access, pg_temp.queue, pg_temp.business_key;
DROP SCHEMA access_evil CASCADE;

-------------------------------------------------------------------------------
-- Read-only transactions
-------------------------------------------------------------------------------

BEGIN READ ONLY;
SELECT access_test.as_role('all', call) AS answer, string_agg(name, ', ' ORDER BY name)
  FROM access_test.call WHERE name NOT IN ('grant_access', 'revoke_access') GROUP BY 1 ORDER BY 1;
SELECT ratchet.grant_access('regress_acc_none', 'work');
ROLLBACK;
BEGIN READ ONLY;
SELECT count(*) > 0 AS views_can_be_read FROM ratchet.jobs;
SELECT ratchet.enqueue('k');
ROLLBACK;

-------------------------------------------------------------------------------

SELECT ratchet.cancel_many(q) IS NOT NULL AS done FROM unnest('{acc_a,acc_b}'::text[]) q;
DELETE FROM ratchet.job WHERE queue LIKE 'acc\__';
DELETE FROM ratchet.job_error WHERE queue LIKE 'acc\__';
DELETE FROM ratchet.job_archive WHERE queue LIKE 'acc\__';
DELETE FROM ratchet.idempotency_key WHERE queue LIKE 'acc\__';
DELETE FROM ratchet.business_key WHERE queue LIKE 'acc\__';
DELETE FROM ratchet.queue WHERE queue LIKE 'acc\__';
SELECT count(ratchet.revoke_access(quote_ident(role_name)::regrole, access, queue)) AS revoked FROM ratchet.access WHERE role_name LIKE 'regress\_acc%';
DROP SCHEMA access_test CASCADE;
DROP ROLE regress_acc_none, regress_acc_enqueue, regress_acc_work, regress_acc_operate, regress_acc_observe, regress_acc_all, regress_acc_other,
          regress_acc_member, regress_acc_deep, regress_acc_noinherit;
