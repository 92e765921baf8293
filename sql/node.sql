-- Nodes, draining and locks.
\set VERBOSITY terse
SELECT count(*) FROM ratchet.enqueue_many('n', ARRAY['{}', '{}', '{}', '{}']::jsonb[], queue => 'node');

-- A node that heartbeats and one that does not.
SELECT ratchet.node_heartbeat('alpha', '{"host": "a"}');
SELECT ratchet.node_heartbeat('alpha');
SELECT count(*) FROM ratchet.claim('node', 'w1', node => 'alpha');
SELECT count(*) FROM ratchet.claim('node', 'w2', node => 'silent');
SELECT ratchet.try_lock('tidy', 'alpha', '1 hour'), ratchet.try_lock('other', 'silent', '1 hour');
SELECT node_id, info, draining, running, started_at < heartbeat_at AS kept_start FROM ratchet.node;

-- Fresh: nothing happens. Stale: its job and its lock are freed, the other's are not.
SELECT ratchet.maintenance_step('nodes');
SET ratchet.node_timeout = '1ms';
SELECT ratchet.maintenance_step('nodes');
RESET ratchet.node_timeout;
SELECT node, state, attempt, crashes, last_error FROM ratchet.job WHERE queue = 'node' AND picked_by IS NOT NULL ORDER BY node;
SELECT name FROM ratchet.lock ORDER BY name;
SELECT count(*) FROM ratchet.node;

-- A heartbeat from the future (the clock was set back) ages from now on.
SELECT ratchet.node_heartbeat('future');
UPDATE ratchet.node_heartbeats SET heartbeat_at = now() + interval '1 day';
SELECT ratchet.maintenance_step('nodes');
SELECT heartbeat_at <= now() AS corrected FROM ratchet.node;

-- Draining: one node, then all.
SELECT ratchet.drain('alpha');
SELECT count(*) FROM ratchet.claim('node', 'w1', node => 'alpha');
SELECT count(*) FROM ratchet.claim('node', 'alpha');
SELECT count(*) FROM ratchet.claim('node', 'w2', node => 'beta');
SELECT ratchet.drain('alpha'), ratchet.undrain('alpha');
SELECT ratchet.undrain('alpha');
SELECT ratchet.drain();
SELECT draining FROM ratchet.node;
SELECT count(*) FROM ratchet.claim('node', 'w2');
-- What runs goes on.
SELECT ratchet.complete(id, token) FROM ratchet.job WHERE node = 'beta';
BEGIN;
SELECT ratchet.undrain();
SELECT count(*) FROM ratchet.claim('node', 'w2');
ROLLBACK;
SELECT count(*) FROM ratchet.claim('node', 'w2');
SELECT ratchet.undrain();
SELECT count(*) FROM ratchet.claim('node', 'w2', 10);

-- Locks: taken, refreshed by the owner, not by another; renewed, released.
SELECT ratchet.try_lock('l', 'a', '1 hour'), ratchet.try_lock('l', 'b', '1 hour'), ratchet.try_lock('l', 'a', '2 hours');
SELECT ratchet.renew_lock('l', 'a', '1 hour'), ratchet.renew_lock('l', 'b', '1 hour'), ratchet.renew_lock('none', 'a', '1 hour');
SELECT ratchet.unlock('l', 'b'), ratchet.unlock('none', 'a'), ratchet.unlock('l', 'a'), ratchet.unlock('l', 'a');
-- Past its end it is lost, whoever comes first.
SELECT ratchet.try_lock('l', 'a', '1 microsecond');
SELECT ratchet.renew_lock('l', 'a', '1 hour') AS lost;
SELECT ratchet.try_lock('l', 'b', '1 microsecond') AS stolen;
SELECT ratchet.maintenance_step('locks') AS expired;
SELECT name FROM ratchet.lock ORDER BY name;

-- Bad input changes nothing.
SELECT ratchet.try_lock(NULL, 'a', '1 s');
SELECT ratchet.try_lock('l', NULL, '1 s');
SELECT ratchet.try_lock('l', 'a', NULL);
SELECT ratchet.try_lock('l', 'a', '0');
SELECT ratchet.try_lock('l', 'a', '-1 s');
SELECT ratchet.try_lock('', 'a', '1 s');
SELECT ratchet.node_heartbeat(NULL);
SELECT ratchet.node_heartbeat(E'a\nb');
SELECT ratchet.drain(repeat('x', 256));

-- Rights.
CREATE ROLE regress_node_worker;
SELECT ratchet.grant_access('regress_node_worker', 'work', 'node');
SET ROLE regress_node_worker;
SELECT ratchet.node_heartbeat('w'), ratchet.try_lock('mine', 'w', '1 h');
SELECT ratchet.drain();
SELECT count(*) FROM ratchet.node;
RESET ROLE;
SELECT ratchet.revoke_access('regress_node_worker', 'work', 'node');
DROP ROLE regress_node_worker;
SELECT ratchet.unlock('mine', 'w'), ratchet.unlock('other', 'silent');
DELETE FROM ratchet.node_heartbeats;
SELECT ratchet.cancel_many('node');
