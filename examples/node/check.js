// check.js: what pg does by default must work: parameters without types, and BEGIN ... COMMIT by hand.
'use strict';
const assert = require('assert');
const { randomUUID } = require('crypto');
const { Client } = require('pg');

async function check() {
  const client = new Client();
  await client.connect();
  const one = async (sql, values) => Object.values((await client.query(sql, values)).rows[0] ?? {})[0];
  const claim = 'SELECT id, token, payload, attempt FROM ratchet.claim($1, $2, $3, lease => $4)';

  await client.query('BEGIN');
  const job = await one('SELECT ratchet.enqueue($1, $2, $3, priority => $4, backoff_base => $5, tags => $6)',
    ['hand', { n: 1 }, 'by hand', 7, '9 seconds', ['a', 'b']]);
  await client.query('ROLLBACK');
  assert.strictEqual(await one('SELECT count(*)::int FROM ratchet.jobs WHERE id = $1', [job]), 0);

  const { rows: ids } = await client.query('SELECT ratchet.enqueue_many($1)', [JSON.stringify(
    [1, 2, 3].map((n) => ({ kind: 'hand', queue: 'by hand', payload: { n }, idempotency_key: `k${n}` })))]);
  assert.strictEqual(ids.length, 3);

  await client.query('BEGIN');
  const taken = (await client.query(claim, ['by hand', 'me', 2, '10 s'])).rows;
  assert.deepStrictEqual(taken.map((row) => [row.payload, row.attempt]), [[{ n: 1 }, 1], [{ n: 2 }, 1]]);
  await client.query('ROLLBACK');       // as if nothing had been claimed: no attempt is used up
  await client.query('BEGIN');
  const [first, second] = (await client.query(claim, ['by hand', 'me', 2, '10 s'])).rows;
  assert.deepStrictEqual([first.id, second.id], taken.map((row) => row.id));
  await client.query('COMMIT');

  assert.strictEqual(await one('SELECT ratchet.progress($1, $2, $3, $4)', [first.id, first.token, 0.5, 'half']), true);
  const beats = (await client.query('SELECT * FROM ratchet.heartbeat($1, $2)', [[first.id, second.id], [first.token]])).rows;
  assert.deepStrictEqual(beats, [{ id: first.id, status: 'ok' }, { id: second.id, status: 'ok' }]);
  assert.strictEqual(await one('SELECT ratchet.complete($1, $2, $3)', [first.id, first.token, '[1, null]']), true);
  assert.strictEqual(await one('SELECT ratchet.fail($1, $2, $3, $4)', [second.id, second.token, 'no', false]), 'failed');

  // Effects and completion in one transaction: a token that is not the lease's undoes both.
  const [third] = (await client.query(claim, ['by hand', 'me', 5, '1 minute'])).rows;
  await client.query('BEGIN');
  await client.query('INSERT INTO shipment (order_id) VALUES ($1)', [99]);
  await assert.rejects(client.query('SELECT ratchet.complete($1, $2, strict => $3)', [third.id, randomUUID(), true]),
    { code: 'RT005' });
  await client.query('ROLLBACK');
  assert.strictEqual(await one('SELECT count(*)::int FROM shipment WHERE order_id = $1', [99]), 0);
  assert.strictEqual(await one('SELECT ratchet.fail($1, $2, $3)', [third.id, third.token, 'later']), 'pending');

  const { rows } = await client.query('SELECT state, result FROM ratchet.jobs WHERE queue = $1 ORDER BY state', ['by hand']);
  assert.deepStrictEqual(rows, [{ state: 'pending', result: null }, { state: 'succeeded', result: [1, null] },
    { state: 'failed', result: null }]);
  await client.end();
  console.log("ok: pg's defaults");
}

check().catch((e) => {
  console.error(e);
  process.exit(1);
});
