-- Other people's row triggers on ratchet.job: they fire for everything that
-- ratchet itself writes, the guard has the last word, and keys still hold.

SET client_min_messages = warning;
CREATE SCHEMA triggers_test;
CREATE FUNCTION triggers_test.try(statement text) RETURNS text LANGUAGE plpgsql AS
$$
DECLARE
    message text;
    detail text;
    hint text;
BEGIN
    EXECUTE statement;
    RETURN 'ok';
EXCEPTION WHEN OTHERS THEN
    GET STACKED DIAGNOSTICS message = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
    RETURN concat_ws(E'\n', SQLSTATE || ': ' || message, nullif(detail, ''), nullif(hint, ''));
END
$$;

CREATE TABLE triggers_test.audit (n serial, op text, old_state text, new_state text, kind text);
CREATE FUNCTION triggers_test.stamp() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN NEW.meta := coalesce(NEW.meta, '{}') || jsonb_build_object(TG_OP, NEW.state); RETURN NEW; END $$;
CREATE FUNCTION triggers_test.audit() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN INSERT INTO triggers_test.audit (op, old_state, new_state, kind) VALUES (TG_OP, CASE WHEN TG_OP <> 'INSERT' THEN OLD.state END, NEW.state, NEW.kind); RETURN NULL; END $$;
CREATE TRIGGER stamp BEFORE INSERT OR UPDATE ON ratchet.job FOR EACH ROW WHEN (NEW.queue = 'triggers' AND NEW.state <> 'running') EXECUTE FUNCTION triggers_test.stamp();
CREATE TRIGGER audit AFTER INSERT OR UPDATE ON ratchet.job FOR EACH ROW WHEN (NEW.queue = 'triggers') EXECUTE FUNCTION triggers_test.audit();

SELECT ratchet.enqueue('one', queue => 'triggers', business_key => 'b', idempotency_key => 'i', run_at => '2024-01-01 00:00Z') AS one \gset
SELECT ratchet.enqueue('one', queue => 'triggers', idempotency_key => 'i') = :'one' AS same;
SELECT split_part(triggers_test.try('SELECT ratchet.enqueue(''two'', queue => ''triggers'', business_key => ''b'')'), E'\n', 1);
SELECT count(*) AS many FROM ratchet.enqueue_many('three', '{1,2}'::jsonb[], queue => 'triggers', run_at => '2024-01-02 00:00Z');
SELECT id, token, kind, attempt FROM ratchet.claim('triggers', 'w') \gset
SELECT :'kind' AS kind, :'attempt' AS attempt;
SELECT status FROM ratchet.heartbeat(ARRAY[:'id']::uuid[], ARRAY[:'token']::uuid[]);
SELECT ratchet.progress(:'id', :'token', 0.5);
SELECT ratchet.fail(:'id', :'token', 'no', retry_in => '0');
SELECT split_part(triggers_test.try('SELECT ratchet.enqueue(''two'', queue => ''triggers'', business_key => ''b'')'), E'\n', 1);
SELECT ratchet.complete(:'id', :'token') AS late;
SELECT id, token, attempt FROM ratchet.claim('triggers', 'w', kinds => '{one}') \gset
SELECT ratchet.complete(:'id', :'token', '{"r": 1}'), :'attempt' AS attempt;
SELECT state, attempt, version, result, meta FROM ratchet.job WHERE id = :'one';
-- Its business key is free again.
SELECT ratchet.enqueue('four', queue => 'triggers', business_key => 'b') IS NOT NULL AS taken_again;
SELECT array_agg(id ORDER BY id) AS ids, min(token::text) AS token, count(*) AS claimed FROM ratchet.claim('triggers', 'w', 2, kinds => '{three}') \gset
SELECT :claimed AS claimed;
SELECT count(*) AS completed FROM ratchet.complete_many(:'ids', ARRAY[:'token']::uuid[]);
SELECT ratchet.cancel_many('triggers');
SELECT op, old_state, new_state, kind FROM triggers_test.audit ORDER BY n;
SELECT kind, state, version FROM ratchet.job WHERE queue = 'triggers' ORDER BY kind, id;
SELECT key, owner FROM ratchet.business_key WHERE queue = 'triggers';

-- A trigger that breaks the rules meets the guard, in ratchet's own calls too.
CREATE FUNCTION triggers_test.cheat() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN NEW.state := 'succeeded'; NEW.finished_at := now(); NEW.token := NULL; RETURN NEW; END $$;
CREATE TRIGGER cheat BEFORE UPDATE ON ratchet.job FOR EACH ROW WHEN (NEW.queue = 'triggers' AND NEW.state = 'running') EXECUTE FUNCTION triggers_test.cheat();
SELECT ratchet.enqueue('five', queue => 'triggers') AS five \gset
SELECT replace(triggers_test.try('SELECT ratchet.claim(''triggers'', ''w'')'), :'five', 'ID') AS error;
SELECT state, attempt FROM ratchet.job WHERE id = :'five';
DROP TRIGGER cheat ON ratchet.job;

-- One that swallows the update: nothing was claimed, so nothing is handed out.
CREATE FUNCTION triggers_test.swallow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;
CREATE TRIGGER swallow BEFORE UPDATE ON ratchet.job FOR EACH ROW WHEN (NEW.queue = 'triggers' AND NEW.state = 'running') EXECUTE FUNCTION triggers_test.swallow();
SELECT count(*) AS handed_out FROM ratchet.claim('triggers', 'w');
SELECT state, attempt, token FROM ratchet.job WHERE id = :'five';
DROP TRIGGER swallow ON ratchet.job;
SELECT ratchet.cancel(:'five');

DROP TRIGGER stamp ON ratchet.job;
DROP TRIGGER audit ON ratchet.job;
DELETE FROM ratchet.job WHERE queue = 'triggers';
DELETE FROM ratchet.job_error WHERE queue = 'triggers';
DELETE FROM ratchet.idempotency_key WHERE queue = 'triggers';
DELETE FROM ratchet.business_key WHERE queue = 'triggers';
DROP SCHEMA triggers_test CASCADE;
