// Example handlers, and the worker that runs them: node handlers.js [--once | --drain] QUEUE...
'use strict';
const { setTimeout: sleep } = require('timers/promises');
const { GiveBack, GiveUp, Skip, main } = require('./worker');

const handlers = {
  // What a handler returns is the job's result.
  async greet(job) {
    if (job.payload.name === undefined) throw new GiveUp('the payload has no name');
    return { greeting: `Hello ${job.payload.name}` };
  },

  // Any other exception is a failure that is tried again, while attempts are left.
  async flaky(job) {
    if (job.attempt < 2) throw new Error('no luck yet');
    return ['an', 'array'];
  },

  async maybe() {
    throw new Skip('already done by hand');
  },

  // Effects in this database belong into the transaction that completes the job.
  async ship(job) {
    await job.completing({ shipped: job.payload.order }, (client) =>
      client.query('INSERT INTO shipment (order_id) VALUES ($1)', [job.payload.order]));
  },

  // A long handler listens to its signal.
  async long(job) {
    await job.progress(0.1, 'begun');
    await sleep(300000, undefined, { signal: job.signal }).catch(() => {
      throw new GiveBack('worker stopped');
    });
  },

  // One that does not is left alone when the grace period is over.
  async deaf() {
    await sleep(300000);
  },
};

if (require.main === module) main(handlers);
