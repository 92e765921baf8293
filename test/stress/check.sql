-- Invariants after the run: each line says what is wrong and how often; no line is good.
CREATE EXTENSION amcheck;
SELECT bt_index_check(indexrelid, true) FROM pg_index
 WHERE indrelid IN ('ratchet.job'::regclass, 'ratchet.business_key'::regclass, 'ratchet.idempotency_key'::regclass) \g /dev/null

WITH wrong (what, n) AS (
    SELECT 'completed, and not succeeded', count(*) FROM done d JOIN ratchet.jobs j USING (id) WHERE j.state <> 'succeeded'
    UNION ALL
    SELECT 'completed, and nowhere', count(*) FROM done d WHERE NOT EXISTS (SELECT FROM ratchet.jobs j WHERE j.id = d.id)
    UNION ALL
    SELECT 'succeeded, and never completed', count(*) FROM ratchet.jobs j
     WHERE j.state = 'succeeded' AND NOT EXISTS (SELECT FROM done d WHERE d.id = j.id)
    UNION ALL
    SELECT 'in two places', count(*) FROM (SELECT id FROM ratchet.jobs GROUP BY id HAVING count(*) > 1) twice
    UNION ALL
    SELECT 'running under a token never granted', count(*) FROM ratchet.job j
     WHERE j.state = 'running' AND NOT EXISTS (SELECT FROM granted g WHERE g.id = j.id AND g.token = j.token)
    UNION ALL
    SELECT 'more runs than attempts', count(*) FROM ratchet.jobs WHERE attempt > max_attempts
    UNION ALL
    SELECT 'key held by a job that is not live', count(*) FROM ratchet.business_key k LEFT JOIN ratchet.job j ON j.id = k.owner
     WHERE k.owner IS NOT NULL AND (j.id IS NULL OR NOT (j.state IN ('pending', 'running') OR j.paused_from = 'pending'))
    UNION ALL
    SELECT 'live job without its key', count(*) FROM ratchet.job j
     WHERE j.business_key IS NOT NULL AND (j.state IN ('pending', 'running') OR j.paused_from = 'pending')
       AND NOT EXISTS (SELECT FROM ratchet.business_key k WHERE (k.queue, k.key, k.owner) = (j.queue, j.business_key, j.id))
    UNION ALL
    SELECT 'ready_at without being ready', count(*) FROM ratchet.job
     WHERE ready_at IS DISTINCT FROM CASE WHEN state = 'pending' THEN scheduled_at END
    UNION ALL
    SELECT 'left_at against its rule', count(*) FROM ratchet.job
     WHERE (left_at IS NULL) <> (state = 'pending' OR paused_from IS NOT DISTINCT FROM 'pending'::ratchet.job_state)
    UNION ALL
    SELECT 'idempotency key of no job', count(*) FROM ratchet.idempotency_key k
     WHERE NOT EXISTS (SELECT FROM ratchet.jobs j WHERE j.id = k.job_id)
    UNION ALL
    SELECT 'nothing happened', 1 WHERE (SELECT count(*) FROM done) < 100 OR (SELECT count(*) FROM ratchet.job_error) < 10
)
SELECT what, n FROM wrong WHERE n > 0;

-- What is left can be handed out: every lane ends.
UPDATE ratchet.job SET scheduled_at = created_at WHERE state = 'pending';
SELECT ratchet.claim(queue, 'sweeper', 10000) FROM (VALUES ('q1'), ('q2')) q (queue) \g /dev/null
SELECT 'pending, and not handed out', count(*) FROM ratchet.job WHERE state = 'pending' HAVING count(*) > 0;
