-- What the clients of the stress run do, and the ledger they keep of it.
CREATE TABLE done (id uuid PRIMARY KEY, token uuid NOT NULL);
CREATE TABLE granted (id uuid, token uuid, PRIMARY KEY (id, token));

-- A worker: claims some jobs and treats them all in one of many ways.
CREATE FUNCTION work(n int, mode int) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    c ratchet.claimed;
BEGIN
    FOR c IN SELECT * FROM ratchet.claim(CASE WHEN mode % 2 = 0 THEN 'q1' ELSE 'q2' END, 'w' || pg_backend_pid(), n,
                                         lease => CASE WHEN mode % 7 = 0 THEN interval '1 microsecond' ELSE '1 hour' END)
    LOOP
        INSERT INTO granted VALUES (c.id, c.token);
        CASE mode % 10
            WHEN 5 THEN
                PERFORM ratchet.fail(c.id, c.token, 'no', retry_in => '0');
            WHEN 6 THEN
                PERFORM ratchet.release(c.id, c.token);
            WHEN 7 THEN     -- completes, thinks better of it, and is lost
                BEGIN
                    PERFORM ratchet.complete(c.id, c.token, strict => true);
                    RAISE 'roll back';
                EXCEPTION WHEN raise_exception THEN
                    PERFORM ratchet.heartbeat(ARRAY[c.id], ARRAY[c.token], '1 microsecond');
                END;
            WHEN 8 THEN     -- lost at once
                PERFORM ratchet.heartbeat(ARRAY[c.id], ARRAY[c.token], '1 microsecond');
            ELSE
                IF ratchet.complete(c.id, c.token) THEN
                    INSERT INTO done VALUES (c.id, c.token);
                END IF;
        END CASE;
    END LOOP;
END $$;

-- A producer, an operator or the maintenance.
CREATE FUNCTION operate(mode int) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    CASE mode % 9
        WHEN 0 THEN
            PERFORM ratchet.maintenance_step('recover');
        WHEN 1 THEN
            PERFORM ratchet.enqueue('k', queue => 'q' || 1 + mode % 2, business_key => 'b' || mode % 37, priority => mode % 5);
        WHEN 2 THEN
            PERFORM ratchet.pause(id) FROM (SELECT id FROM ratchet.job TABLESAMPLE system (5) LIMIT 1) j;
        WHEN 3 THEN
            PERFORM ratchet.resume(id) FROM (SELECT id FROM ratchet.job WHERE state = 'paused' LIMIT 1) j;
        WHEN 4 THEN
            PERFORM ratchet.retry(id) FROM (SELECT id FROM ratchet.job WHERE state = 'failed' LIMIT 1) j;
        WHEN 5 THEN
            PERFORM ratchet.enqueue_many('k', ARRAY['{}', '{}', '{}']::jsonb[], queue => 'q1', priority => mode % 3,
                                         expires_in => CASE WHEN mode % 4 = 0 THEN interval '1 microsecond' END);
        WHEN 6 THEN
            PERFORM ratchet.enqueue('k', queue => 'q2', idempotency_key => 'i' || mode / 9 % 200);
        WHEN 7 THEN
            PERFORM ratchet.cancel(id) FROM (SELECT id FROM ratchet.job TABLESAMPLE system (5) LIMIT 1) j WHERE mode % 4 = 0;
        ELSE
            PERFORM ratchet.maintenance_step('expire'), ratchet.maintenance_step('keys'), ratchet.maintenance_step('archive');
    END CASE;
EXCEPTION WHEN sqlstate 'RT002' THEN
    NULL;       -- the key was taken: that is an answer
END $$;
