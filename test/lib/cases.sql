-- What the pg_regress cases share. A case begins with
--   \getenv abs_srcdir PG_ABS_SRCDIR
--   \set helpers :abs_srcdir '/test/lib/cases.sql'
--   \set ECHO none
--   \i :helpers
--   \set ECHO all
\pset format unaligned
SET timezone = 'UTC';
SET datestyle = 'ISO';
SET intervalstyle = 'postgres';

-- Ids are random: a case gives its jobs names.
CREATE TEMP TABLE named (name text PRIMARY KEY, id uuid UNIQUE);

CREATE FUNCTION pg_temp.job(wanted text) RETURNS uuid STABLE LANGUAGE sql
    AS 'SELECT id FROM named WHERE name = wanted';

-- Text with the ids in it replaced: by the job's name, or by <uuid>.
CREATE FUNCTION pg_temp.readable(words text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    known record;
BEGIN
    FOR known IN SELECT * FROM named WHERE id IS NOT NULL LOOP
        words := replace(words, known.id::text, '<' || known.name || '>');
    END LOOP;
    RETURN regexp_replace(words, '[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}', '<uuid>', 'g');
END $$;

-- The first value a command answers, or its error: SQLSTATE, message, detail, hint.
CREATE FUNCTION pg_temp.try(command text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    answer text;
    code text;
    message text;
    detail text;
    hint text;
BEGIN
    EXECUTE command INTO answer;
    RETURN pg_temp.readable(coalesce(answer, '(null)'));
EXCEPTION WHEN OTHERS THEN
    GET STACKED DIAGNOSTICS code = RETURNED_SQLSTATE, message = MESSAGE_TEXT,
        detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
    RETURN pg_temp.readable(concat_ws(' / ', code || ': ' || message, nullif(detail, ''), nullif(hint, '')));
END $$;

-- A UUIDv7 of a client's own, for a time of its choice.
CREATE FUNCTION pg_temp.own_id(at timestamptz, salt int DEFAULT 0) RETURNS uuid LANGUAGE sql AS $$
    SELECT (lpad(to_hex(floor(extract(epoch FROM at) * 1000)::bigint), 12, '0')
            || '7' || substr(md5(salt::text), 1, 3) || '8' || substr(md5(salt::text || 'x'), 1, 15))::uuid
$$;
