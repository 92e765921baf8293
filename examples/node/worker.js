// A complete ratchet worker for npm's pg; handlers.js is a program made with it.
//
// It runs several jobs at once, keeps their leases alive over a connection of its own, and completes or fails each in a
// transaction of its own. On SIGTERM or SIGINT it claims no more, tells the running handlers through job.signal, waits for
// them, and after the grace period gives back what is still held. The connection comes from PGHOST, PGDATABASE, ...
'use strict';
const os = require('os');
const { parseArgs } = require('util');
const { setTimeout: sleep } = require('timers/promises');
const { Pool } = require('pg');

class GiveUp extends Error {}       // thrown by a handler: it failed, and would fail again
class Skip extends Error {}         // thrown by a handler: there is nothing to do
class GiveBack extends Error {}     // thrown by a handler: somebody else shall do it; costs no attempt

const LEASE_LOST = 'RT005';
// pg sends every parameter as text without a type, and makes a PostgreSQL array of a JavaScript one: JSON goes as a string.
const json = (value) => (value === undefined ? null : JSON.stringify(value));
const connectionLost = (e) => e.severity === undefined || /^(08|57P)/.test(e.code);

class Worker {
  constructor(queues, handlers, { name, concurrency = 5, lease = 60, poll = 1, grace = 10 } = {}) {
    Object.assign(this, { queues, handlers, concurrency, lease, poll, grace });
    this.name = name ?? `${os.hostname()}.${process.pid}`;
    this.stopping = new AbortController();
    this.held = new Map();          // id -> job: what the heartbeat speaks for
    this.running = new Set();       // promises
    this.pool = new Pool({ max: concurrency + 1 });
    this.beats = new Pool({ max: 1 });      // never in line behind a handler's long statement
    for (const pool of [this.pool, this.beats]) pool.on('error', (e) => this.say(`connection lost: ${e.message}`));
  }

  stop() { this.stopping.abort(); }

  async run(mode = 'forever') {
    const timer = setInterval(() => this.beat(), (this.lease * 1000) / 3);
    let told = false;
    while (!this.stopping.signal.aborted) {
      const jobs = await this.claim(this.concurrency - this.running.size);
      for (const job of jobs) this.start(job);
      if (jobs.length > 0) told = false;
      if (mode === 'once') break;
      if (this.running.size >= this.concurrency) await Promise.race(this.running);
      else if (jobs.length === 0 && mode === 'drain' && this.running.size > 0) await Promise.race(this.running);
      else if (jobs.length === 0 && mode === 'drain') break;
      else if (jobs.length === 0 && !told) told = await this.wait();
      else if (jobs.length === 0) {                        // told of work, and none claimed: others were faster, or we are draining
        await this.pause(this.poll);
        told = false;
      }
    }
    await this.finish();
    clearInterval(timer);
    await Promise.all([this.pool.end(), this.beats.end()]);
    this.say('ended');
  }

  // Wait for the running handlers; when asked to stop, only for so long, and give the rest back.
  async finish() {
    const all = Promise.all(this.running);
    const asked = new Promise((resolve) => {
      if (this.stopping.signal.aborted) resolve();
      else this.stopping.signal.addEventListener('abort', resolve, { once: true });
    });
    await Promise.race([all, asked]);
    await Promise.race([all, sleep(this.grace * 1000, undefined, { ref: false })]);
    await Promise.all([...this.held.values()].map((job) => this.settle(job, 'release', '$3, $4', ['0', 'worker stopped'])));
  }

  async pause(seconds) {
    await sleep(seconds * 1000, undefined, { signal: this.stopping.signal }).catch(() => {});
  }

  // One statement, one transaction. When the server went away, wait for it to come back for as long as a lease lasts.
  async ask(sql, values) {
    for (const end = Date.now() + this.lease * 1000; ;) {
      try {
        return (await this.pool.query(sql, values)).rows;
      } catch (e) {
        if (!connectionLost(e) || Date.now() > end) throw e;
        await sleep(this.poll * 1000);
      }
    }
  }

  // True as soon as there may be work. A short wait: only between two of them do we see that we are asked to end.
  async wait() {
    const [row] = await this.ask('CALL ratchet.wait($1::text[], $2::interval)', [this.queues, `${this.poll} seconds`]);
    return row.ready;
  }

  async claim(batch) {
    const rows = await this.ask('SELECT * FROM ratchet.claim($1::text[], $2, $3, $4)',
      [this.queues, this.name, batch, `${this.lease} seconds`]);
    return rows.map((row) => new Job(this, row));
  }

  start(job) {
    this.held.set(job.id, job);
    const promise = this.work(job)
      .catch((e) => this.say(`${job.kind}: could not settle it, it will be recovered: ${e.message}`))
      .finally(() => {
        this.held.delete(job.id);
        this.running.delete(promise);
      });
    this.running.add(promise);
  }

  async work(job) {
    try {
      const handler = this.handlers[job.kind];
      if (!handler) throw new Error(`no handler for kind ${job.kind}`);
      const result = await handler(job);
      if (!job.settled) await this.settle(job, 'complete', '$3', [json(result)]);
    } catch (e) {               // whatever transaction the handler had is rolled back by now: these are new ones
      if (e instanceof Skip) await this.settle(job, 'skip', '$3', [e.message]);
      else if (e instanceof GiveBack) await this.settle(job, 'release', '$3, $4', ['0', e.message]);
      else if (e.code === LEASE_LOST) this.say(`${job.kind}: lease lost, effects rolled back`);
      else {
        await this.settle(job, 'fail', '$3, $4, detail => $5',
          [`${e.constructor.name}: ${e.message}`, !(e instanceof GiveUp), json({ stack: e.stack })]);
      }
    }
  }

  async settle(job, call, placeholders, values) {
    if (job.settled) return;
    job.settled = true;
    const [row] = await this.ask(`SELECT ratchet.${call}($1, $2, ${placeholders}) AS answer`, [job.id, job.token, ...values]);
    // false or null: the lease was lost. Whoever has the job now does it; nothing is left to do here.
    this.say(`${job.kind}, attempt ${job.attempt}: ${call} -> ${row.answer}`);
  }

  async beat() {
    const jobs = [...this.held.values()];
    if (jobs.length === 0) return;
    try {
      const { rows } = await this.beats.query('SELECT id, status FROM ratchet.heartbeat($1, $2, $3)',
        [jobs.map((job) => job.id), jobs.map((job) => job.token), `${this.lease} seconds`]);
      for (const { id, status } of rows) {
        if (status === 'canceled' || status === 'lost') this.held.get(id)?.abort.abort();
      }
    } catch (e) {
      this.say(`no heartbeat: ${e.message}`);
    }
  }

  say(text) { console.error(`${this.name}: ${text}`); }
}

// A claimed job: id, kind, payload, attempt, max_attempts, meta, tags and the rest of ratchet.claimed.
class Job {
  constructor(worker, row) {
    Object.assign(this, row);
    this.worker = worker;
    this.settled = false;
    this.abort = new AbortController();
    worker.stopping.signal.addEventListener('abort', () => this.abort.abort(), { once: true });
  }

  // Aborted when the job is canceled or lost, or the worker is to end: time to throw (GiveBack, for example).
  get signal() { return this.abort.signal; }

  progress(fraction, message = null) {
    return this.worker.ask('SELECT ratchet.progress($1, $2, $3, $4)', [this.id, this.token, fraction, message]);
  }

  // One transaction for a handler's effects and the completion: both happen or neither does. strict raises RT005 if the
  // lease was lost, which rolls the effects back.
  async completing(result, effects) {
    const client = await this.worker.pool.connect();
    try {
      await client.query('BEGIN');
      await effects(client);
      await client.query('SELECT ratchet.complete($1, $2, $3, true)', [this.id, this.token, json(result)]);
      await client.query('COMMIT');
      this.settled = true;
    } catch (e) {
      await client.query('ROLLBACK').catch(() => {});
      throw e;
    } finally {
      client.release();
    }
  }
}

function main(handlers) {
  const { values, positionals } = parseArgs({
    allowPositionals: true,
    options: {
      once: { type: 'boolean' }, drain: { type: 'boolean' }, name: { type: 'string' }, concurrency: { type: 'string' },
      lease: { type: 'string' }, poll: { type: 'string' }, grace: { type: 'string' },
    },
  });
  if (positionals.length === 0) {
    console.error('usage: [--once | --drain] [--name NAME] [--concurrency N] [--lease S] [--poll S] [--grace S] QUEUE...');
    process.exit(2);
  }
  const options = { name: values.name };
  for (const key of ['concurrency', 'lease', 'poll', 'grace']) if (values[key]) options[key] = Number(values[key]);
  const worker = new Worker(positionals, handlers, options);
  for (const signal of ['SIGTERM', 'SIGINT']) process.on(signal, () => worker.stop());
  worker.run(values.once ? 'once' : values.drain ? 'drain' : 'forever').then(() => process.exit(0), (e) => {
    console.error(e);
    process.exit(1);
  });
}

module.exports = { Worker, GiveUp, Skip, GiveBack, main };
