-- Bad input: every argument of every function against a corpus of values that
-- are null, empty, huge, infinite, absurd or of the wrong shape. Nothing but a
-- documented SQLSTATE comes back, and a failed call changes nothing.

SET client_min_messages = warning;
CREATE SCHEMA bad_test;
CREATE ROLE regress_bad;

-------------------------------------------------------------------------------
-- Jobs to be called with, one in each state that some function wants
-------------------------------------------------------------------------------

CREATE TABLE bad_test.job (state text, id uuid, token uuid);
INSERT INTO bad_test.job SELECT s, ratchet.enqueue(s, queue => 'bad', run_at => '2024-01-01 00:00Z') FROM unnest('{running,failed,succeeded}'::text[]) s;
UPDATE bad_test.job j SET token = c.token FROM ratchet.claim('bad', 'w', 3) c WHERE c.id = j.id;
SELECT ratchet.fail(id, token, 'e', retryable => false) FROM bad_test.job WHERE state = 'failed';
SELECT ratchet.complete(id, token) FROM bad_test.job WHERE state = 'succeeded';
INSERT INTO bad_test.job SELECT 'pending', ratchet.enqueue('pending', queue => 'bad', business_key => 'b', idempotency_key => 'i');
INSERT INTO bad_test.job SELECT 'paused', ratchet.enqueue('paused', queue => 'bad', hold => true);
SELECT j.state, r.state FROM bad_test.job j JOIN ratchet.job r USING (id) ORDER BY 1;

-------------------------------------------------------------------------------
-- The corpus: SQL expressions by type
-------------------------------------------------------------------------------

CREATE TABLE bad_test.corpus (type text, label text, value text);
INSERT INTO bad_test.corpus
SELECT 'text', label, value || '::text'
  FROM (VALUES ('null', 'NULL'), ('empty', ''''''), ('space', ''' '''), ('quotes', '''''''"'''), ('backslash', '''\'''), ('format', '''%s %n %d %%'''),
               ('parameter', '''$1'''), ('comment', ''';--'''), ('newline', 'E''a\nb'''), ('x01', 'E''\x01'''), ('x1f', 'E''a\x1f'''), ('x7f', 'E''\x7f'''),
               ('bidi', 'E''\u202e'''), ('combining', 'E''e\u0301'''), ('emoji', 'E''\U0001F512'''), ('array', '''{a,b}'''), ('catalog', '''pg_catalog'''),
               ('dots', '''..'''), ('number', '''1'''), ('word', '''success'''), ('63', 'repeat(''x'', 63)'), ('64', 'repeat(''x'', 64)'), ('128', 'repeat(''x'', 128)'),
               ('129', 'repeat(''x'', 129)'), ('255', 'repeat(''x'', 255)'), ('256', 'repeat(''x'', 256)'), ('256 wide', 'repeat(E''\u00e9'', 128)'),
               ('3000', 'repeat(''x'', 3000)'), ('8191', 'repeat(''x'', 8191)'), ('1 MB', 'repeat(''x'', 1000000)')) v(label, value);
INSERT INTO bad_test.corpus
SELECT 'integer', coalesce(value, 'null'), coalesce('''' || value || '''', 'NULL') || '::int'
  FROM unnest('{NULL,0,-1,1,100,101,-100,-101,10000,10001,100001,2147483647,-2147483648}'::text[]) value;
INSERT INTO bad_test.corpus
SELECT 'double precision', coalesce(value, 'null'), coalesce('''' || value || '''', 'NULL') || '::float8'
  FROM unnest('{NULL,0,-0,1,0.5,1.0000001,-1e-300,1e308,5e-324,NaN,Infinity,-Infinity}'::text[]) value;
INSERT INTO bad_test.corpus
SELECT 'interval', coalesce(value, 'null'), coalesce('''' || value || '''', 'NULL') || '::interval'
  FROM unnest('{NULL,0,1 us,3660 days,-1 us,-1 s,1 month,1 month -31 days,-1 month 31 days,1 year,3660 days 1 us,87841 hours,178000000 years,-178000000 years,
                2147483647 days,-2147483648 days,2562047788 hours,-2562047788 hours,2147483647 days -2562047788 hours,1 day -24 hours,1 day -25 hours,infinity}'::text[]) value;
INSERT INTO bad_test.corpus
SELECT 'timestamp with time zone', coalesce(value, 'null'), coalesce('''' || value || '''', 'NULL') || '::timestamptz'
  FROM unnest('{NULL,infinity,-infinity,4714-11-24 00:00Z BC,294276-12-31 23:59:59.999999Z,294266-12-31 00:00Z,1999-12-31 23:59:59.999999Z,2000-01-01 00:00Z,1970-01-01 00:00Z,
                0001-01-01 00:00Z,9999-12-31 00:00Z,epoch,now}'::text[]) value;
INSERT INTO bad_test.corpus
SELECT 'jsonb', label, value || '::jsonb'
  FROM (VALUES ('null', 'NULL'), ('json null', '''null'''), ('true', '''true'''), ('number', '''-0'''), ('big number', '''1e5000'''), ('string', '''"x"'''), ('[]', '''[]'''), ('{}', '''{}'''),
               ('[[]]', '''[[]]'''), ('twice', '''{"a": 1, "a": 2}'''), ('mixed', '''[1, null, "x", {}]'''), ('nul', '''"\u0000"'''), ('malformed', '''{"a"'''),
               ('1000 deep', '(repeat(''['', 1000) || repeat('']'', 1000))'), ('100 kB', '(''{"a": "'' || repeat(''x'', 100000) || ''"}'')'),
               ('2 MB', '(''"'' || repeat(''x'', 2000000) || ''"'')'), ('2 MB of keys', '(SELECT jsonb_object_agg(g, g) FROM generate_series(1, 100000) g)')) v(label, value);
INSERT INTO bad_test.corpus
SELECT 'uuid', label, coalesce('''' || value || '''', 'NULL') || '::uuid'
  FROM (VALUES ('null', NULL), ('nil', '00000000-0000-0000-0000-000000000000'), ('max', 'ffffffff-ffff-ffff-ffff-ffffffffffff'),
               ('v1', 'c232ab00-9414-11ec-b3c8-9f6bdeced846'), ('v4', '919108f7-52d1-4320-9bac-f847db4148a8'), ('v7 of 2022', '017f22e2-79b0-7cc3-98c4-dc0c0c07398f'),
               ('v7 of 10889', 'ffffffff-ffff-7fff-bfff-ffffffffffff'), ('v7 of another variant', '017f22e2-79b0-7cc3-d8c4-dc0c0c07398f')) v(label, value);
INSERT INTO bad_test.corpus
SELECT 'uuid[]', label, value || '::uuid[]'
  FROM (VALUES ('null', 'NULL'), ('empty', '''{}'''), ('null element', '''{NULL}'''), ('with null', 'ARRAY[''919108f7-52d1-4320-9bac-f847db4148a8'', NULL]'),
               ('2-D', 'ARRAY[ARRAY[''919108f7-52d1-4320-9bac-f847db4148a8''], ARRAY[''c232ab00-9414-11ec-b3c8-9f6bdeced846'']]'),
               ('lower bound', '''[5:6]={919108f7-52d1-4320-9bac-f847db4148a8,c232ab00-9414-11ec-b3c8-9f6bdeced846}'''),
               ('unknown twice', 'ARRAY[''919108f7-52d1-4320-9bac-f847db4148a8'', ''919108f7-52d1-4320-9bac-f847db4148a8'']'),
               ('10000', 'array_fill(''919108f7-52d1-4320-9bac-f847db4148a8''::uuid, ''{10000}'')'), ('unknown', 'ARRAY[''919108f7-52d1-4320-9bac-f847db4148a8'']')) v(label, value);
INSERT INTO bad_test.corpus
SELECT 'text[]', label, value || '::text[]'
  FROM (VALUES ('null', 'NULL'), ('empty', '''{}'''), ('null element', '''{NULL}'''), ('with null', 'ARRAY[''a'', NULL]'), ('empty element', '''{""}'''), ('2-D', '''{{a,b},{c,d}}'''),
               ('lower bound', '''[5:6]={a,b}'''), ('twice', '''{a,a}'''), ('64', 'array_fill(''a''::text, ''{64}'')'), ('65', 'array_fill(''a''::text, ''{65}'')'),
               ('control', 'ARRAY[E''a\x01'']'), ('brace', 'ARRAY[''{a}'']'), ('256 byte element', 'ARRAY[repeat(''x'', 256)]'), ('1 MB element', 'ARRAY[repeat(''x'', 1000000)]'),
               ('10000', 'array_fill(''a''::text, ''{10000}'')')) v(label, value);
INSERT INTO bad_test.corpus
SELECT 'jsonb[]', label, value || '::jsonb[]'
  FROM (VALUES ('null', 'NULL'), ('empty', '''{}'''), ('null element', '''{NULL}'''), ('2-D', '''{{1,2},{3,4}}'''), ('lower bound', '''[5:6]={1,2}'''),
               ('2 MB element', 'ARRAY[to_jsonb(repeat(''x'', 2000000))]'), ('with null', '''{1,NULL}'''), ('1000', 'array_fill(''1''::jsonb, ''{1000}'')')) v(label, value);
INSERT INTO bad_test.corpus SELECT 'boolean', coalesce(value, 'null'), coalesce(value, 'NULL') || '::boolean' FROM unnest('{NULL,true,false}'::text[]) value;
INSERT INTO bad_test.corpus SELECT 'regrole', coalesce(value, 'null'), coalesce('''' || value || '''', 'NULL') || '::oid::regrole' FROM unnest('{NULL,0,1,4294967295}'::text[]) value;
INSERT INTO bad_test.corpus SELECT 'ratchet.job_state', coalesce(value, 'null'), coalesce('''' || value || '''', 'NULL') || '::ratchet.job_state' FROM unnest('{NULL,pending,expired}'::text[]) value;

-------------------------------------------------------------------------------
-- The calls, from pg_proc: one argument from the corpus, the required ones valid
-------------------------------------------------------------------------------

CREATE VIEW bad_test.argument AS
SELECT p.oid AS f, proname, n, proargnames[n] AS name, format_type(type, NULL) AS type, n <= pronargs - pronargdefaults AS required
  FROM pg_proc p, unnest(proargtypes) WITH ORDINALITY u(type, n)
 WHERE pronamespace = 'ratchet'::regnamespace AND prokind = 'f' AND prorettype <> 'trigger'::regtype;

-- A value that would do, by function and argument, else by argument, else by type.
CREATE FUNCTION bad_test.valid(proname name, name text, type text) RETURNS text LANGUAGE sql AS
$$
SELECT CASE
    WHEN name = 'id' THEN (SELECT format('%L::uuid', id) FROM bad_test.job
                            WHERE state = CASE WHEN $1 IN ('retry') THEN 'failed' WHEN $1 IN ('rerun', 'forget') THEN 'succeeded' WHEN $1 = 'resume' THEN 'paused'
                                               WHEN $1 IN ('pause', 'reschedule', 'cancel') THEN 'pending' ELSE 'running' END)
    WHEN name = 'token' THEN (SELECT format('%L::uuid', token) FROM bad_test.job WHERE state = 'running')
    WHEN name = 'ids' THEN (SELECT format('ARRAY[%L]::uuid[]', id) FROM bad_test.job WHERE state = 'running')
    WHEN name = 'tokens' THEN (SELECT format('ARRAY[%L]::uuid[]', token) FROM bad_test.job WHERE state = 'running')
    WHEN name = 'queue' THEN '''bad''::text' WHEN name = 'queues' THEN '''{bad}''::text[]' WHEN name = 'access' THEN '''work''::text'
    WHEN name = 'duty' THEN '''keys''::text' WHEN name = 'jobs' THEN '''[{"kind": "k"}]''::jsonb'
    WHEN type = 'text' THEN '''x''::text' WHEN type = 'text[]' THEN '''{x}''::text[]' WHEN type = 'jsonb' THEN '''{}''::jsonb' WHEN type = 'jsonb[]' THEN '''{1}''::jsonb[]'
    WHEN type = 'interval' THEN '''1 min''::interval' WHEN type = 'integer' THEN '1' WHEN type = 'double precision' THEN '0.5::float8'
    WHEN type = 'regrole' THEN '''regress_bad''::regrole' WHEN type = 'ratchet.job_state' THEN '''pending''::ratchet.job_state'
    WHEN type = 'timestamp with time zone' THEN 'now()' WHEN type = 'boolean' THEN 'true' WHEN type = 'uuid[]' THEN '''{919108f7-52d1-4320-9bac-f847db4148a8}''::uuid[]'
    WHEN type = 'uuid' THEN '''919108f7-52d1-4320-9bac-f847db4148a8''::uuid' END
$$;

CREATE TABLE bad_test.call (n serial, f oid, proname name, arg text, type text, required boolean, label text, call text,
    got text, message text, changed boolean, left_behind boolean);
INSERT INTO bad_test.call (f, proname, arg, type, required, label, call)
SELECT f, a.proname, a.name, a.type, a.required, c.label,
       format('SELECT count(*) FROM (SELECT * FROM ratchet.%I(%s)) s', a.proname,
              (SELECT string_agg(format('%I => %s', b.name, CASE WHEN b.n = a.n THEN c.value ELSE bad_test.valid(b.proname, b.name, b.type) END), ', ' ORDER BY b.n)
                 FROM bad_test.argument b WHERE b.f = a.f AND (b.required OR b.n = a.n OR (a.name = 'max' AND b.name = 'queue'))))
  FROM bad_test.argument a
  JOIN bad_test.corpus c USING (type)
 ORDER BY a.proname, f, a.n, c.label COLLATE "C";
-- Everything null, and everything given.
INSERT INTO bad_test.call (f, proname, label, call)
SELECT f, proname, v, format('SELECT count(*) FROM (SELECT * FROM ratchet.%I(%s)) s', proname,
           string_agg(format('%I => %s', name, CASE v WHEN 'all null' THEN 'NULL::' || type ELSE bad_test.valid(proname, name, type) END), ', ' ORDER BY n))
  FROM bad_test.argument, unnest('{all null,all given}'::text[]) v
 GROUP BY f, proname, v
 ORDER BY proname, f, v;
-- enqueue_many(jobs): every key of a job with every JSON type.
INSERT INTO bad_test.call (f, proname, arg, label, call)
SELECT 'ratchet.enqueue_many(jsonb)'::regprocedure, 'enqueue_many', 'jobs: ' || key, left(value::text, 30),
       format('SELECT count(*) FROM ratchet.enqueue_many(%L::jsonb)', jsonb_build_array('{"kind": "k", "queue": "bad"}'::jsonb || jsonb_build_object(key, value)))
  FROM (SELECT name AS key FROM bad_test.argument WHERE proname = 'enqueue' UNION ALL VALUES (''), ('kInd'), ('wait'), (repeat('x', 3000))) k,
       unnest(ARRAY['null', 'true', '0', '-1', '101', '1.5', '1e10', '-1e4000', '""', '"x"', '"-1 s"', '"1 month"', '"infinity"', '"178000000 years"', '"10:00 99-99-99"',
                    '"4714-11-24 BC"', '"5 days ago"', '[]', '{}', '[null]', '[1]', '[""]', '[["a"]]', '{"a": null}', to_jsonb(repeat('x', 256)), to_jsonb(repeat('x', 70000)),
                    '"\u0001"', '"919108f7-52d1-4320-9bac-f847db4148a8"', '"919108f7-52d1-4320-9bac"', '"{a,b}"']::jsonb[]) value;

-- All that ratchet's tables hold, in one number per table.
DO
$$
BEGIN
    EXECUTE (SELECT format('CREATE FUNCTION bad_test.fingerprint() RETURNS text LANGUAGE plpgsql AS %L', 'BEGIN RETURN ' ||
                        string_agg(format('(SELECT count(*) || '':'' || coalesce(sum(hashtextextended(t::text, 0)), 0) || '' '' FROM ratchet.%I t)', relname), ' || ' ORDER BY relname) || '; END')
               FROM pg_class WHERE relnamespace = 'ratchet'::regnamespace AND relkind = 'r');
END
$$;

-- Runs every call, and undoes it when it went well.
DO
$$
<<outer_block>>
DECLARE
    c record;
    before text := bad_test.fingerprint();
    got text;
    message text;
    detail text;
    hint text;
    changed boolean;
BEGIN
    FOR c IN SELECT n, call FROM bad_test.call ORDER BY n LOOP
        changed := NULL;
        message := NULL;
        BEGIN
            EXECUTE c.call;
            changed := bad_test.fingerprint() <> before;
            RAISE SQLSTATE 'ZZ000';
        EXCEPTION
            WHEN SQLSTATE 'ZZ000' THEN got := 'ok';
            WHEN OTHERS THEN
                got := SQLSTATE;
                GET STACKED DIAGNOSTICS message = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
                message := concat_ws(' / ', message, nullif(detail, ''), nullif(hint, ''));
        END;
        UPDATE bad_test.call b SET got = outer_block.got, message = outer_block.message, changed = outer_block.changed, left_behind = bad_test.fingerprint() <> before WHERE b.n = c.n;
    END LOOP;
END
$$;

-------------------------------------------------------------------------------
-- What must hold
-------------------------------------------------------------------------------

-- Every function was called, most of them also successfully.
SELECT proname FROM pg_proc
 WHERE pronamespace = 'ratchet'::regnamespace AND prokind = 'f' AND prorettype <> 'trigger'::regtype AND pronargs > 0
   AND oid NOT IN (SELECT f FROM bad_test.call WHERE got IS NOT NULL) ORDER BY 1;
SELECT proname FROM bad_test.call GROUP BY f, proname HAVING NOT bool_or(got = 'ok') ORDER BY 1;
SELECT count(*) > 4000 AS calls, count(*) FILTER (WHERE got = 'ok') > 500 AS good, count(*) FILTER (WHERE got <> 'ok') > 1500 AS bad FROM bad_test.call;
-- Only documented SQLSTATEs, and those of PostgreSQL's own input functions.
SELECT proname, arg, label, got, left(message, 100) AS message FROM bad_test.call
 WHERE got NOT IN ('ok', 'RT001', 'RT002', 'RT003', 'RT004', 'RT005', '22023', '22004', '23505', '23514', '42704', '42501', '54000', '55000', '25006', '25001', '0A000')
   AND NOT (got IN ('22P02', '22P05') AND type LIKE 'jsonb%')                      -- malformed JSON
   AND NOT (got IN ('22007', '22008') AND type IN ('interval', 'timestamp with time zone'))
   AND NOT (got IN ('22P02', '22007', '22008', '22015', '22003') AND arg LIKE 'jobs: %')      -- a uuid, time or number in a string
 ORDER BY n;
-- A failed call left nothing behind.
SELECT proname, arg, label, got FROM bad_test.call WHERE left_behind ORDER BY n;
-- Nor did one with an id, a token or both that are not those of the job.
SELECT proname, arg, label FROM bad_test.call WHERE got = 'ok' AND changed AND arg IN ('id', 'ids', 'token', 'tokens') AND proname NOT IN ('enqueue', 'complete_and_claim') ORDER BY n;
-- Every error says something.
SELECT proname, arg, label, got FROM bad_test.call WHERE got <> 'ok' AND coalesce(message, '') = '' ORDER BY n;

-- What each kind of value must get. Arguments whose part is not built yet say 0A000 to all of them.
CREATE VIEW bad_test.expected AS
SELECT n, CASE
    -- null where a value is needed; a null among the elements of an array
    WHEN label = 'null' AND required AND proname NOT IN ('is_terminal', 'is_successful', 'was_executed') AND NOT (proname = 'has_access' AND arg = 'queue') THEN '22004'
    WHEN label IN ('null element', 'with null') AND arg <> 'results' THEN '22004'
    -- names: not empty, not too long, no control characters
    WHEN label IN ('empty', 'x01', 'x1f', 'x7f', 'newline', '1 MB', '3000', '8191', '256', '256 wide')
         AND type = 'text' AND arg IN ('queue', 'kind', 'worker', 'node', 'idempotency_key', 'business_key', 'tag', 'name', 'owner') AND proname <> 'has_access' THEN '22023'
    WHEN label IN ('129', '255', 'array') AND type = 'text' AND arg = 'queue' AND proname <> 'has_access' THEN '22023'
    WHEN label IN ('63', '64', '128', 'emoji', 'bidi', 'quotes', 'format', 'space') AND type = 'text' AND arg IN ('queue', 'kind', 'worker', 'node', 'idempotency_key', 'business_key', 'tag') THEN 'ok'
    WHEN label = '255' AND type = 'text' AND arg IN ('kind', 'worker', 'idempotency_key', 'business_key', 'tag') THEN 'ok'
    WHEN type = 'text' AND arg IN ('backoff', 'access') AND label <> 'null' THEN '22023'
    WHEN type = 'text' AND arg = 'duty' AND label <> 'null' THEN '42704'
    -- free text is taken as it is
    WHEN type = 'text' AND arg IN ('error', 'reason', 'message') AND label <> 'null' THEN 'ok'
    WHEN type = 'text[]' AND label IN ('empty element', 'control', '256 byte element', '1 MB element') THEN '22023'
    WHEN type = 'text[]' AND label = 'brace' AND arg = 'queues' THEN '22023'
    WHEN type = 'text[]' AND label IN ('65', '10000') AND arg = 'tags' THEN '54000'
    WHEN type = 'text[]' AND label IN ('empty', '64', 'twice') THEN 'ok'
    -- numbers
    WHEN arg = 'priority' AND label IN ('101', '-101', '10000', '2147483647', '-2147483648') THEN '22023'
    WHEN arg = 'priority' AND label IN ('100', '-100', '0') THEN 'ok'
    WHEN arg IN ('max_attempts', 'batch', 'max') AND type = 'integer' AND label IN ('0', '-1', '-2147483648') THEN '22023'
    WHEN arg = 'batch' AND label IN ('10001', '2147483647') THEN '22023'
    WHEN arg = 'batch' AND label IN ('1', '10000') THEN 'ok'
    WHEN arg = 'fraction' AND label IN ('1.0000001', '-1e-300', '1e308', 'NaN', 'Infinity', '-Infinity') THEN '22023'
    WHEN arg = 'fraction' AND label IN ('0', '-0', '1', '0.5', '5e-324') THEN 'ok'
    -- lengths of time
    WHEN type = 'interval' AND label IN ('-1 us', '-1 s', '1 month', '1 month -31 days', '-1 month 31 days', '1 year', '3660 days 1 us', '87841 hours', '178000000 years', '-178000000 years',
         '2147483647 days', '-2147483648 days', '2562047788 hours', '-2562047788 hours', '2147483647 days -2562047788 hours', '1 day -25 hours') THEN '22023'
    WHEN type = 'interval' AND label IN ('0', '1 day -24 hours') THEN CASE WHEN arg IN ('delay', 'retry_in', 'archive_after') THEN 'ok' ELSE '22023' END
    WHEN type = 'interval' AND label IN ('1 us', '3660 days') THEN 'ok'
    -- points in time
    WHEN type = 'timestamp with time zone' AND label IN ('infinity', '-infinity', '4714-11-24 00:00Z BC', '1999-12-31 23:59:59.999999Z', '1970-01-01 00:00Z', '0001-01-01 00:00Z', 'epoch') THEN '22023'
    WHEN type = 'timestamp with time zone' AND label IN ('2000-01-01 00:00Z', '9999-12-31 00:00Z', 'now') THEN 'ok'
    -- documents
    WHEN arg IN ('payload', 'result', 'detail') AND label IN ('2 MB', '2 MB of keys') THEN '54000'
    WHEN arg IN ('payload', 'result', 'detail') AND label IN ('json null', 'true', 'number', 'string', '[]', '{}', '[[]]', 'twice', 'mixed', '1000 deep', '100 kB') THEN 'ok'
    WHEN arg = 'payloads' AND label = '2 MB element' THEN '54000'
    WHEN arg = 'results' AND label IN ('empty', '2-D', 'lower bound', '1000', 'with null') THEN '22023'
    WHEN arg = 'results' AND label = '2 MB element' THEN '54000'
    WHEN arg = 'meta' AND label IN ('json null', 'true', 'number', 'string', '[]', '[[]]', 'mixed', '1000 deep') THEN '22023'
    WHEN arg = 'meta' AND label IN ('100 kB', '2 MB of keys') THEN '54000'
    WHEN arg = 'jobs' AND label IN ('json null', 'true', 'number', 'string', '{}', '[[]]', 'twice', 'mixed', '2 MB', '2 MB of keys') THEN '22023'
    WHEN arg = 'jobs' AND label = '[]' THEN 'ok'
    -- ids and tokens
    WHEN arg = 'id' AND proname = 'enqueue' AND label <> 'null' THEN '22023'
    WHEN arg IN ('id', 'token') AND label <> 'null' THEN 'ok'
    WHEN arg = 'tokens' AND label IN ('empty', 'unknown twice', '10000', '2-D', 'lower bound') THEN '22023'
    WHEN arg IN ('ids', 'tokens') AND label = 'unknown' THEN 'ok'
    WHEN arg = 'ids' AND label IN ('empty', 'unknown twice', '10000') THEN 'ok'
    WHEN type = 'regrole' AND label IN ('0', '1', '4294967295') THEN '42704'
    -- jobs as JSON: what has the wrong type, and what is not known
    WHEN arg IN ('jobs: ', 'jobs: kInd', 'jobs: wait', 'jobs: ' || repeat('x', 3000)) THEN '22023'
    WHEN arg LIKE 'jobs: %' AND label = 'null' THEN CASE WHEN arg = 'jobs: kind' THEN '22004' ELSE 'ok' END
    WHEN arg IN ('jobs: kind', 'jobs: queue', 'jobs: backoff', 'jobs: backoff_base', 'jobs: timeout', 'jobs: run_at', 'jobs: id', 'jobs: tags', 'jobs: idempotency_key', 'jobs: meta',
                 'jobs: business_key', 'jobs: lease', 'jobs: priority', 'jobs: max_attempts')
         AND label = 'true' THEN '22023'
    WHEN arg IN ('jobs: priority', 'jobs: max_attempts', 'jobs: hold', 'jobs: jitter') AND (label LIKE '"%' OR label LIKE '[%' OR label LIKE '{%' OR label = '1.5') THEN '22023'
    WHEN arg = 'jobs: payload' THEN 'ok'
    WHEN arg = 'jobs: tags' AND label IN ('{}', '[null]', '[1]', '[""]', '[["a"]]', '"{a,b}"') THEN '22023'
    END AS want
  FROM bad_test.call;
SELECT proname, arg, label, got, want, left(message, 100) AS message
  FROM bad_test.call JOIN bad_test.expected USING (n)
 WHERE got <> want AND NOT (got = '0A000' AND message LIKE 'argument "%" is not available in this version of ratchet%')
 ORDER BY n;
SELECT count(*) > 1200 AS expectations FROM bad_test.expected WHERE want IS NOT NULL;

-------------------------------------------------------------------------------
-- The words
-------------------------------------------------------------------------------

CREATE FUNCTION bad_test.try(call text) RETURNS text LANGUAGE plpgsql AS
$$
DECLARE
    message text;
    detail text;
    hint text;
BEGIN
    EXECUTE 'SELECT * FROM ratchet.' || call;
    RETURN 'ok';
EXCEPTION WHEN OTHERS THEN
    GET STACKED DIAGNOSTICS message = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
    RETURN concat_ws(E'\n', SQLSTATE || ': ' || message, nullif(detail, ''), nullif(hint, ''));
END
$$;
SELECT call, bad_test.try(call)
  FROM unnest(ARRAY[
    $$enqueue(NULL)$$, $$enqueue('')$$, $$enqueue(repeat('x', 256))$$, $$enqueue(E'a\tb')$$, $$enqueue('k', queue => '{a,b}')$$,
    $$enqueue('k', priority => 101)$$, $$enqueue('k', max_attempts => 0)$$, $$enqueue('k', run_at => 'infinity')$$, $$enqueue('k', run_at => '1999-12-31 12:00Z')$$,
    $$enqueue('k', run_at => '294276-12-31')$$, $$enqueue('k', timeout => '1 month')$$, $$enqueue('k', timeout => '-1 s')$$, $$enqueue('k', lease => '0')$$,
    $$enqueue('k', keep_for => '3661 days')$$, $$enqueue('k', backoff => 'random')$$, $$enqueue('k', to_jsonb(repeat('x', 1048576)))$$, $$enqueue('k', meta => '[]')$$,
    $$enqueue('k', meta => jsonb_build_object('a', repeat('x', 70000)))$$, $$enqueue('k', tags => '{a,NULL}')$$, $$enqueue('k', tags => '{""}')$$,
    $$enqueue('k', tags => array_fill('a'::text, '{65}'))$$, $$enqueue('k', id => '919108f7-52d1-4320-9bac-f847db4148a8')$$,
    $$enqueue_many('k', NULL)$$, $$enqueue_many('k', '{1,NULL}')$$, $$enqueue_many('{"kind": "k"}')$$, $$enqueue_many('[1]')$$, $$enqueue_many('[{"kind": "k", "prio": 1}]')$$,
    $$enqueue_many('[{"queue": "q"}]')$$, $$enqueue_many('[{"kind": "k", "priority": "1"}]')$$, $$enqueue_many('[{"kind": "k", "priority": 1.5}]')$$,
    $$enqueue_many('[{"kind": "k"}, {"kind": "k", "timeout": "1 month"}]')$$, $$enqueue_many('[{"kind": "k", "run_at": "soon"}]')$$,
    $$claim(NULL::text, 'w')$$, $$claim('{a,b}', 'w')$$, $$claim('{a,NULL}'::text[], 'w')$$, $$claim('q', '')$$, $$claim('q', 'w', 0)$$, $$claim('q', 'w', 10001)$$, $$claim('q', 'w', lease => '-1 s')$$,
    $$claim('q', 'w', kinds => '{""}')$$,
    $$complete(NULL, NULL)$$, $$complete_many('{}', '{}')$$, $$complete_many('{919108f7-52d1-4320-9bac-f847db4148a8,919108f7-52d1-4320-9bac-f847db4148a9}', '{}')$$,
    $$complete_many('{919108f7-52d1-4320-9bac-f847db4148a8}', '{919108f7-52d1-4320-9bac-f847db4148a8}', '{}')$$, $$heartbeat('{NULL}', '{NULL}')$$,
    $$progress('919108f7-52d1-4320-9bac-f847db4148a8', '919108f7-52d1-4320-9bac-f847db4148a8', 'NaN')$$,
    $$fail('919108f7-52d1-4320-9bac-f847db4148a8', '919108f7-52d1-4320-9bac-f847db4148a8', NULL)$$,
    $$complete('919108f7-52d1-4320-9bac-f847db4148a8', '919108f7-52d1-4320-9bac-f847db4148a8', strict => true)$$,
    $$retry_many()$$, $$cancel_many('q', max => 0)$$, $$configure_queue('q', max_attempts => -1)$$, $$configure_queue('q', archive_after => '-1 s')$$,
    $$grant_access('regress_bad', 'admin')$$, $$grant_access('0', 'work')$$, $$has_access('q', NULL)$$]) WITH ORDINALITY u(call, n)
 ORDER BY n;
SELECT split_part(bad_test.try('maintenance_step(''cleanup'')'), E'\n', 1) AS unknown_duty;
-- An id of one's own, used twice.
SELECT id AS own FROM bad_test.job WHERE state = 'pending' \gset
SELECT replace(bad_test.try(format('enqueue(''k'', id => %L)', :'own')), :'own', 'ID') AS duplicate;
-- What the limits let through.
BEGIN;
SELECT ratchet.enqueue('k', to_jsonb(repeat('x', 1048576 - 100)), queue => 'bad') IS NOT NULL AS nearly_a_megabyte;
SELECT ratchet.enqueue(repeat('x', 255), queue => repeat('q', 128), idempotency_key => repeat('i', 255), business_key => repeat('b', 255), tags => array_fill(repeat('t', 255), '{64}'),
                       meta => jsonb_build_object('a', repeat('x', 65000)), lease => '3660 days', timeout => '3660 days', expires_in => '3660 days', keep_for => '3660 days',
                       backoff_base => '3660 days', backoff_max => '3660 days', max_attempts => 2147483647, run_at => '2000-01-01 00:00Z') IS NOT NULL AS all_at_their_limits;
SELECT count(*) AS overdue FROM ratchet.claim(repeat('q', 128), repeat('w', 255), 10000, node => repeat('n', 255));
ROLLBACK;

-------------------------------------------------------------------------------
-- Unusual places to call from
-------------------------------------------------------------------------------

BEGIN;
SELECT ratchet.cancel_many('bad');
SELECT count(*) FROM ratchet.enqueue_many('place', array_fill('1'::jsonb, '{8}'), queue => 'bad', run_at => '2024-01-01 00:00Z');
-- Set-returning functions in a select list, expanded, laterally, twice in a statement.
SELECT (c).kind, (c).attempt FROM (SELECT ratchet.claim('bad', 'w') AS c OFFSET 0) s;
SELECT count(*) FROM (SELECT ratchet.enqueue_many('place', '{1,2}', queue => 'bad')) s;
SELECT g, kind FROM generate_series(1, 2) g, LATERAL ratchet.claim('bad', 'w' || g) ORDER BY g;
SELECT a.id <> b.id AS different FROM ratchet.claim('bad', 'w') a, ratchet.claim('bad', 'w') b;
-- Claimed and completed in one statement.
SELECT ratchet.complete(id, token) FROM ratchet.claim('bad', 'w');
WITH c AS MATERIALIZED (SELECT * FROM ratchet.claim('bad', 'w')), d AS (SELECT ratchet.complete(id, token) AS done FROM c) SELECT done FROM d;
-- In a cursor: all of a batch is claimed with the first row.
DECLARE c CURSOR FOR SELECT kind FROM ratchet.claim('bad', 'cursor', 2);
FETCH 1 FROM c;
SELECT count(*) FROM ratchet.job WHERE queue = 'bad' AND picked_by = 'cursor';
CLOSE c;
-- As a default, in a trigger, in a block with an exception, under COPY.
CREATE TABLE bad_test.order (n int, job uuid DEFAULT ratchet.enqueue('by default', queue => 'bad'));
INSERT INTO bad_test.order (n) VALUES (1), (2);
CREATE FUNCTION bad_test.on_order() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN PERFORM ratchet.enqueue('by trigger', jsonb_build_object('n', NEW.n), queue => 'bad'); RETURN NULL; END $$;
CREATE TRIGGER t AFTER INSERT ON bad_test.order FOR EACH ROW EXECUTE FUNCTION bad_test.on_order();
INSERT INTO bad_test.order (n) VALUES (3);
DO
$$
BEGIN
    BEGIN
        PERFORM ratchet.enqueue('taken back', queue => 'bad', business_key => 'back', idempotency_key => 'back');
        PERFORM 1 / 0;
    EXCEPTION WHEN division_by_zero THEN
        PERFORM ratchet.enqueue('by handler', queue => 'bad', business_key => 'back', idempotency_key => 'back');
    END;
END
$$;
COPY bad_test.order (n) FROM stdin;
4
\.
SELECT kind, count(*) FROM ratchet.job WHERE queue = 'bad' AND kind IN ('by default', 'by trigger', 'taken back', 'by handler') GROUP BY kind ORDER BY kind;
ROLLBACK;

-- After all of that the session works as before.
SELECT j.state, r.state FROM bad_test.job j JOIN ratchet.job r USING (id) ORDER BY 1;
SELECT ratchet.progress(id, token, 0.5), ratchet.complete(id, token, '{}') FROM bad_test.job WHERE state = 'running';
SELECT ratchet.complete(id, token) FROM ratchet.claim('bad', 'w');

SELECT ratchet.cancel_many('bad');
DELETE FROM ratchet.job WHERE queue = 'bad';
DELETE FROM ratchet.job_error WHERE queue = 'bad';
DELETE FROM ratchet.idempotency_key WHERE queue = 'bad';
DELETE FROM ratchet.business_key WHERE queue = 'bad';
DROP SCHEMA bad_test CASCADE;
DROP ROLE regress_bad;
