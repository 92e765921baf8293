-- ratchet 0.1: install script
--
-- What is committed here is what ships: no generated SQL. Every object is
-- created plainly (never OR REPLACE, never IF NOT EXISTS), so that an object
-- somebody made beforehand makes CREATE EXTENSION fail instead of being adopted.

\echo Use "CREATE EXTENSION ratchet" to load this file. \quit

SET LOCAL search_path TO pg_catalog, pg_temp;

-- Made by the script, so that it is a member: it goes with the extension, and
-- an existing schema of that name is refused.
CREATE SCHEMA ratchet;
COMMENT ON SCHEMA ratchet IS 'ratchet: job queue and scheduler inside the database';

-------------------------------------------------------------------------------
-- Types
-------------------------------------------------------------------------------

CREATE TYPE ratchet.job_state AS ENUM
    ('pending', 'running', 'succeeded', 'failed', 'paused', 'canceled', 'skipped', 'expired');
COMMENT ON TYPE ratchet.job_state IS 'state of a job; ratchet.transition lists the moves between them';

-- New columns only ever at the end: clients bind to these positions.
CREATE TYPE ratchet.claimed AS (
    id uuid,
    kind text,
    payload jsonb,
    attempt int,
    max_attempts int,
    token uuid,
    queue text,
    priority int,
    lease_expires_at timestamptz,
    timeout interval,
    meta jsonb,
    scheduled_at timestamptz,
    created_at timestamptz,
    tags text[]
);
COMMENT ON TYPE ratchet.claimed IS 'a job as claim() hands it to a worker, with the token that fences its completion';

-------------------------------------------------------------------------------
-- The job
-------------------------------------------------------------------------------

-- Column order is a decision. What never changes stands first, what a claim or
-- a completion writes stands last and together: an UPDATE on the same page logs
-- only the bytes between the common prefix and the common suffix of the two
-- tuples. Wide types precede narrow ones, so that little is lost to alignment.
-- The defaults are for an owner who inserts by hand; enqueue fills in all columns.
CREATE TABLE ratchet.job (
    -- identity: the guard refuses every change
    id uuid NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    queue text COLLATE "C" NOT NULL DEFAULT 'default',
    kind text COLLATE "C" NOT NULL,
    payload jsonb NOT NULL DEFAULT '{}',
    idempotency_key text COLLATE "C",
    enqueued_by text COLLATE "C" NOT NULL DEFAULT CURRENT_USER,
    -- what the producer asked for
    max_attempts int NOT NULL DEFAULT 3,
    jitter boolean,
    backoff text COLLATE "C",
    backoff_base interval,
    backoff_max interval,
    timeout interval,
    lease interval,
    expires_in interval,
    keep_until timestamptz,
    batch_id uuid,
    business_key text COLLATE "C",
    concurrency_key text COLLATE "C",
    resource text COLLATE "C",
    circuit text COLLATE "C",
    tags text[],
    meta jsonb,
    -- where it stands in its queue
    scheduled_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at timestamptz,
    priority int NOT NULL DEFAULT 0,
    waiting_on int NOT NULL DEFAULT 0,
    -- its life
    ready_at timestamptz,
    left_at timestamptz,
    picked_at timestamptz,
    started_at timestamptz,
    finished_at timestamptz,
    lease_expires_at timestamptz,
    lease_us bigint,
    state ratchet.job_state NOT NULL DEFAULT 'pending',
    paused_from ratchet.job_state,
    attempt int NOT NULL DEFAULT 0,
    crashes int NOT NULL DEFAULT 0,
    version int NOT NULL DEFAULT 1,
    token uuid,
    picked_by text COLLATE "C",
    node text COLLATE "C",
    progress float8,
    progress_message text,
    last_error text,
    result jsonb,
    CONSTRAINT job_pkey PRIMARY KEY (id)
) WITH (
    -- Room on the page for the next versions of its rows: heartbeat and
    -- completion touch no indexed column and so stay HOT if there is room.
    fillfactor = 70,
    -- Above 1 kB the payload goes out of line: it is never changed, and inline
    -- it would be copied with every transition.
    toast_tuple_target = 1024,
    -- A queue's rows all die, and index entries of claimed jobs pile up at the
    -- front of job_ready. Vacuum by number of dead rows, not by share of a
    -- backlog, and without pausing: what it has to read is small and hot.
    autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_threshold = 5000,
    autovacuum_analyze_scale_factor = 0.2
);

-- Few indexes, and none that mentions state, finished_at, lease_expires_at or
-- progress. A claim leaves job_ready and enters job_left; the completion that
-- follows touches no index at all.
CREATE INDEX job_ready ON ratchet.job (queue, priority DESC, ready_at, id) WHERE ready_at IS NOT NULL;
CREATE INDEX job_left ON ratchet.job (left_at) WHERE left_at IS NOT NULL;
CREATE INDEX job_expires ON ratchet.job (expires_at) WHERE expires_at IS NOT NULL AND left_at IS NULL;

COMMENT ON TABLE ratchet.job IS 'live jobs, and finished ones until they are archived; read it through ratchet.jobs';
COMMENT ON COLUMN ratchet.job.id IS 'UUIDv7';
COMMENT ON COLUMN ratchet.job.created_at IS 'when it was enqueued';
COMMENT ON COLUMN ratchet.job.queue IS 'the queue it is handed out from';
COMMENT ON COLUMN ratchet.job.kind IS 'what is to be done: the worker''s dispatch key';
COMMENT ON COLUMN ratchet.job.payload IS 'the argument for the worker';
COMMENT ON COLUMN ratchet.job.idempotency_key IS 'key under which a second enqueue finds this job';
COMMENT ON COLUMN ratchet.job.enqueued_by IS 'name of the role that enqueued it';
COMMENT ON COLUMN ratchet.job.max_attempts IS 'number of runs before a failure is final';
COMMENT ON COLUMN ratchet.job.jitter IS 'vary the retry delay; NULL: the queue''s, then on';
COMMENT ON COLUMN ratchet.job.backoff IS 'none, fixed, linear or exponential; NULL: the queue''s, then exponential';
COMMENT ON COLUMN ratchet.job.backoff_base IS 'first retry delay; NULL: the queue''s, then 5 s';
COMMENT ON COLUMN ratchet.job.backoff_max IS 'longest retry delay; NULL: the queue''s, then 24 h';
COMMENT ON COLUMN ratchet.job.timeout IS 'longest run; NULL: the queue''s, then none';
COMMENT ON COLUMN ratchet.job.lease IS 'lease a claim grants; NULL: the queue''s, then ratchet.default_lease';
COMMENT ON COLUMN ratchet.job.expires_in IS 'how long it may wait for a claim, counted from scheduled_at';
COMMENT ON COLUMN ratchet.job.keep_until IS 'it is not purged from the archive before this';
COMMENT ON COLUMN ratchet.job.batch_id IS 'batch it belongs to';
COMMENT ON COLUMN ratchet.job.business_key IS 'key with at most one live owner per queue';
COMMENT ON COLUMN ratchet.job.concurrency_key IS 'key that limits count running jobs by';
COMMENT ON COLUMN ratchet.job.resource IS 'resource it needs a permit of';
COMMENT ON COLUMN ratchet.job.circuit IS 'circuit breaker it runs behind';
COMMENT ON COLUMN ratchet.job.tags IS 'free labels, for the many-job operations';
COMMENT ON COLUMN ratchet.job.meta IS 'free data beside the payload';
COMMENT ON COLUMN ratchet.job.scheduled_at IS 'not handed out before this; its waiting time counts from here';
COMMENT ON COLUMN ratchet.job.expires_at IS 'not handed out after this';
COMMENT ON COLUMN ratchet.job.priority IS '-100..100, higher first';
COMMENT ON COLUMN ratchet.job.waiting_on IS 'number of unmet dependencies';
COMMENT ON COLUMN ratchet.job.ready_at IS 'derived: scheduled_at of a claimable job, NULL for any other';
COMMENT ON COLUMN ratchet.job.left_at IS 'derived: when it left the ready index for good, or until it comes back';
COMMENT ON COLUMN ratchet.job.picked_at IS 'start of the last run';
COMMENT ON COLUMN ratchet.job.started_at IS 'start of the first run';
COMMENT ON COLUMN ratchet.job.finished_at IS 'when it finished';
COMMENT ON COLUMN ratchet.job.lease_expires_at IS 'the run is given up as lost after this unless a heartbeat extends it';
COMMENT ON COLUMN ratchet.job.lease_us IS 'length of the lease in microseconds: what a heartbeat extends by, and what no lease outlives when the clock is set back';
COMMENT ON COLUMN ratchet.job.state IS 'where it stands; changed along ratchet.transition only';
COMMENT ON COLUMN ratchet.job.paused_from IS 'state that resume goes back to';
COMMENT ON COLUMN ratchet.job.attempt IS 'number of the current or last run, 0 before the first';
COMMENT ON COLUMN ratchet.job.crashes IS 'runs whose worker vanished';
COMMENT ON COLUMN ratchet.job.version IS 'number of versions of this row; a count, not a fence';
COMMENT ON COLUMN ratchet.job.token IS 'proof of the current lease, known to its claimer only';
COMMENT ON COLUMN ratchet.job.picked_by IS 'worker of the current or last run';
COMMENT ON COLUMN ratchet.job.node IS 'node of the current or last run';
COMMENT ON COLUMN ratchet.job.progress IS 'what the worker last reported, 0..1';
COMMENT ON COLUMN ratchet.job.progress_message IS 'what the worker last said';
COMMENT ON COLUMN ratchet.job.last_error IS 'last error, or the reason given for cancel, skip or release';
COMMENT ON COLUMN ratchet.job.result IS 'what complete() was given';

-------------------------------------------------------------------------------
-- What stands beside the job
-------------------------------------------------------------------------------

-- Only configured queues have a row; NULL means the default.
CREATE TABLE ratchet.queue (
    queue text COLLATE "C" PRIMARY KEY,
    paused boolean NOT NULL DEFAULT false,
    priority int,
    max_attempts int,
    backoff text COLLATE "C",
    backoff_base interval,
    backoff_max interval,
    jitter boolean,
    timeout interval,
    lease interval,
    expires_in interval,
    keep_for interval,
    archive_after interval,
    max_running int,
    max_per_key int,
    rate_limit int,
    rate_period interval,
    fair boolean,
    events text COLLATE "C"
);
COMMENT ON TABLE ratchet.queue IS 'queues that differ from the defaults; written by configure_queue, pause_queue and resume_queue';

-- One row per key, for ever: archived, purged and canceled jobs keep theirs.
CREATE TABLE ratchet.idempotency_key (
    queue text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    job_id uuid NOT NULL,
    kind text COLLATE "C" NOT NULL,
    CONSTRAINT idempotency_key_pkey PRIMARY KEY (queue, key)
);
COMMENT ON TABLE ratchet.idempotency_key IS 'which job an idempotency key stands for; written by enqueue, kept for ever';

-- One row per key, updated in place when the owner changes: the churn stays in
-- one HOT chain instead of a unique index's dead entries. Filled by the guard
-- from ratchet.job, and so not dumped.
CREATE TABLE ratchet.business_key (
    queue text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    owner uuid,
    CONSTRAINT business_key_pkey PRIMARY KEY (queue, key)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
COMMENT ON TABLE ratchet.business_key IS 'the live job that holds a business key; kept by the guard';

CREATE TABLE ratchet.job_error (
    job_id uuid NOT NULL,
    queue text COLLATE "C" NOT NULL,
    attempt int NOT NULL,
    at timestamptz NOT NULL,
    worker text COLLATE "C",
    error text NOT NULL,
    detail jsonb
);
CREATE INDEX job_error_job ON ratchet.job_error (job_id, at);
CREATE INDEX job_error_at ON ratchet.job_error (at);
COMMENT ON TABLE ratchet.job_error IS 'each failed, timed-out or orphaned run';

-- Roles by name, not by OID: a dump is restored where the numbers differ.
CREATE TABLE ratchet.access (
    role_name name NOT NULL,
    access text COLLATE "C" NOT NULL CHECK (access IN ('enqueue', 'work', 'operate', 'observe')),
    queue text COLLATE "C",
    CONSTRAINT access_key UNIQUE NULLS NOT DISTINCT (role_name, access, queue)
);
COMMENT ON TABLE ratchet.access IS 'who may do what in which queue (NULL: in all); written by grant_access and revoke_access';

-- Who has said that it is alive. Neither this nor the locks are dumped: in a
-- restored copy nobody is.
CREATE TABLE ratchet.node_heartbeats (
    node_id text COLLATE "C" PRIMARY KEY,
    heartbeat_at timestamptz NOT NULL,
    started_at timestamptz NOT NULL,
    info jsonb
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
COMMENT ON TABLE ratchet.node_heartbeats IS 'nodes that have called node_heartbeat, until they are stale; read it through ratchet.node';

-- Apart from the heartbeats: every claim asks this, and so it is cached.
CREATE TABLE ratchet.draining (
    node text COLLATE "C",
    CONSTRAINT draining_key UNIQUE NULLS NOT DISTINCT (node)
);
COMMENT ON TABLE ratchet.draining IS 'nodes (NULL: all) that claim nothing; written by drain and undrain';

CREATE TABLE ratchet.lock (
    name text COLLATE "C" PRIMARY KEY,
    owner text COLLATE "C" NOT NULL,
    locked_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL
) WITH (fillfactor = 50);
CREATE INDEX lock_expires ON ratchet.lock (expires_at);
COMMENT ON TABLE ratchet.lock IS 'named locks with an owner and an end; written by try_lock, renew_lock and unlock';

-------------------------------------------------------------------------------
-- The archive
-------------------------------------------------------------------------------

-- By week of the finish. Neither key nor index on the parent: with one,
-- pg_restore fails on the partitions made at run time. Those are ordinary
-- tables, not members of the extension; the default partition is one.
CREATE TABLE ratchet.job_archive (
    id uuid NOT NULL,
    queue text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL,
    payload jsonb NOT NULL,
    state ratchet.job_state NOT NULL,
    priority int NOT NULL,
    scheduled_at timestamptz NOT NULL,
    created_at timestamptz NOT NULL,
    attempt int NOT NULL,
    max_attempts int NOT NULL,
    crashes int NOT NULL,
    version int NOT NULL,
    picked_by text COLLATE "C",
    picked_at timestamptz,
    node text COLLATE "C",
    lease interval,
    timeout interval,
    expires_at timestamptz,
    expires_in interval,
    keep_until timestamptz,
    backoff text COLLATE "C",
    backoff_base interval,
    backoff_max interval,
    jitter boolean,
    idempotency_key text COLLATE "C",
    business_key text COLLATE "C",
    concurrency_key text COLLATE "C",
    resource text COLLATE "C",
    circuit text COLLATE "C",
    batch_id uuid,
    result jsonb,
    last_error text,
    progress float8,
    progress_message text,
    tags text[],
    meta jsonb,
    enqueued_by text COLLATE "C" NOT NULL,
    started_at timestamptz,
    finished_at timestamptz NOT NULL,
    archived_at timestamptz NOT NULL
) PARTITION BY RANGE (finished_at);
COMMENT ON TABLE ratchet.job_archive IS 'finished jobs after archive_after, in weekly partitions; read it through ratchet.jobs';

CREATE TABLE ratchet.job_archive_default PARTITION OF ratchet.job_archive DEFAULT;
CREATE INDEX job_archive_default_id ON ratchet.job_archive_default (id);
COMMENT ON TABLE ratchet.job_archive_default IS 'archived jobs of weeks without a partition, and those kept longer than theirs';

-------------------------------------------------------------------------------
-- The guard
-------------------------------------------------------------------------------

CREATE FUNCTION ratchet.guard() RETURNS trigger
    LANGUAGE C AS 'MODULE_PATHNAME', 'ratchet_guard';
COMMENT ON FUNCTION ratchet.guard() IS 'refuses every change of a job that ratchet.transition does not allow';
CREATE FUNCTION ratchet.guard_keys() RETURNS trigger
    LANGUAGE C AS 'MODULE_PATHNAME', 'ratchet_guard_keys';
COMMENT ON FUNCTION ratchet.guard_keys() IS 'takes and releases the business key of a job that was written';
CREATE FUNCTION ratchet.settings_changed() RETURNS trigger
    LANGUAGE C AS 'MODULE_PATHNAME', 'ratchet_settings_changed';
COMMENT ON FUNCTION ratchet.settings_changed() IS 'makes every session read the changed settings again';

-- Row triggers fire in the order of their names; this one has the last word.
CREATE TRIGGER zz_guard BEFORE INSERT OR UPDATE OR DELETE ON ratchet.job
    FOR EACH ROW EXECUTE FUNCTION ratchet.guard();
CREATE TRIGGER zz_guard_truncate BEFORE TRUNCATE ON ratchet.job
    FOR EACH STATEMENT EXECUTE FUNCTION ratchet.guard();
-- Keys are taken after the row is really there: a BEFORE trigger also runs for
-- an INSERT that ON CONFLICT then drops.
CREATE TRIGGER zz_guard_keys_insert AFTER INSERT ON ratchet.job
    FOR EACH ROW WHEN (NEW.business_key IS NOT NULL) EXECUTE FUNCTION ratchet.guard_keys();
CREATE TRIGGER zz_guard_keys_update AFTER UPDATE ON ratchet.job
    FOR EACH ROW WHEN (OLD.business_key IS NOT NULL OR NEW.business_key IS NOT NULL)
    EXECUTE FUNCTION ratchet.guard_keys();

CREATE TRIGGER settings_changed AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON ratchet.queue
    FOR EACH STATEMENT EXECUTE FUNCTION ratchet.settings_changed();
CREATE TRIGGER settings_changed AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON ratchet.access
    FOR EACH STATEMENT EXECUTE FUNCTION ratchet.settings_changed();
CREATE TRIGGER settings_changed AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON ratchet.draining
    FOR EACH STATEMENT EXECUTE FUNCTION ratchet.settings_changed();

-- ALWAYS, and here: session_replication_role = replica and replication apply
-- pass an ordinary trigger by, and a later ALTER TABLE is not dumped.
ALTER TABLE ratchet.job ENABLE ALWAYS TRIGGER zz_guard;
ALTER TABLE ratchet.job ENABLE ALWAYS TRIGGER zz_guard_truncate;
ALTER TABLE ratchet.job ENABLE ALWAYS TRIGGER zz_guard_keys_insert;
ALTER TABLE ratchet.job ENABLE ALWAYS TRIGGER zz_guard_keys_update;
ALTER TABLE ratchet.queue ENABLE ALWAYS TRIGGER settings_changed;
ALTER TABLE ratchet.access ENABLE ALWAYS TRIGGER settings_changed;
ALTER TABLE ratchet.draining ENABLE ALWAYS TRIGGER settings_changed;

-------------------------------------------------------------------------------
-- States
-------------------------------------------------------------------------------

CREATE FUNCTION ratchet.is_terminal(state ratchet.job_state) RETURNS boolean
    LANGUAGE C IMMUTABLE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'ratchet_is_terminal';
COMMENT ON FUNCTION ratchet.is_terminal IS 'no worker will touch a job in this state again (failed included: only an operator moves it)';
CREATE FUNCTION ratchet.is_successful(state ratchet.job_state) RETURNS boolean
    LANGUAGE C IMMUTABLE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'ratchet_is_successful';
COMMENT ON FUNCTION ratchet.is_successful IS 'succeeded or skipped';
CREATE FUNCTION ratchet.was_executed(state ratchet.job_state) RETURNS boolean
    LANGUAGE C IMMUTABLE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'ratchet_was_executed';
COMMENT ON FUNCTION ratchet.was_executed IS 'a worker ran it: running, succeeded or failed';
CREATE FUNCTION ratchet.terminal_states() RETURNS ratchet.job_state[]
    LANGUAGE C IMMUTABLE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'ratchet_terminal_states';
COMMENT ON FUNCTION ratchet.terminal_states IS 'the states is_terminal() is true of';

CREATE FUNCTION ratchet.transitions(OUT from_state ratchet.job_state, OUT to_state ratchet.job_state, OUT done_by text)
    RETURNS SETOF record
    LANGUAGE C STABLE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'ratchet_transitions';
COMMENT ON FUNCTION ratchet.transitions IS 'the guard''s own table of transitions';
CREATE VIEW ratchet.transition AS SELECT from_state, to_state, done_by FROM ratchet.transitions();
COMMENT ON VIEW ratchet.transition IS 'every allowed change of state, and what makes it; from_state NULL: a new job';

-------------------------------------------------------------------------------
-- Producers
-------------------------------------------------------------------------------

CREATE FUNCTION ratchet.enqueue(
    kind text,
    payload jsonb = '{}',
    queue text = 'default',
    priority int = NULL,
    run_at timestamptz = NULL,
    max_attempts int = NULL,
    backoff text = NULL,
    backoff_base interval = NULL,
    backoff_max interval = NULL,
    jitter boolean = NULL,
    timeout interval = NULL,
    lease interval = NULL,
    expires_in interval = NULL,
    keep_for interval = NULL,
    idempotency_key text = NULL,
    business_key text = NULL,
    concurrency_key text = NULL,
    resource text = NULL,
    circuit text = NULL,
    depends_on uuid[] = NULL,
    run_when text = 'success',
    tags text[] = NULL,
    meta jsonb = NULL,
    hold boolean = false,
    id uuid = NULL
) RETURNS uuid
    LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'ratchet_enqueue';
COMMENT ON FUNCTION ratchet.enqueue IS 'adds a job, in the caller''s transaction';

CREATE FUNCTION ratchet.enqueue_many(
    kind text,
    payloads jsonb[],
    queue text = 'default',
    priority int = NULL,
    run_at timestamptz = NULL,
    max_attempts int = NULL,
    backoff text = NULL,
    backoff_base interval = NULL,
    backoff_max interval = NULL,
    jitter boolean = NULL,
    timeout interval = NULL,
    lease interval = NULL,
    expires_in interval = NULL,
    keep_for interval = NULL,
    concurrency_key text = NULL,
    resource text = NULL,
    circuit text = NULL,
    depends_on uuid[] = NULL,
    run_when text = 'success',
    tags text[] = NULL,
    meta jsonb = NULL,
    hold boolean = false
) RETURNS SETOF uuid
    LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'ratchet_enqueue_many';
COMMENT ON FUNCTION ratchet.enqueue_many(text, jsonb[], text, int, timestamptz, int, text, interval, interval, boolean,
    interval, interval, interval, interval, text, text, text, uuid[], text, text[], jsonb, boolean)
    IS 'adds one job per payload, all alike, all or none';

CREATE FUNCTION ratchet.enqueue_many(jobs jsonb) RETURNS SETOF uuid
    LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'ratchet_enqueue_many_jobs';
COMMENT ON FUNCTION ratchet.enqueue_many(jsonb) IS 'adds the jobs of an array of objects keyed by enqueue''s argument names, all or none';

-------------------------------------------------------------------------------
-- Workers
-------------------------------------------------------------------------------

CREATE FUNCTION ratchet.claim(
    queue text,
    worker text,
    batch int = 1,
    lease interval = NULL,
    kinds text[] = NULL,
    wait interval = NULL,
    node text = NULL,
    session boolean = false
) RETURNS SETOF ratchet.claimed
    LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'ratchet_claim';
COMMENT ON FUNCTION ratchet.claim(text, text, int, interval, text[], interval, text, boolean)
    IS 'hands out up to batch jobs of a queue, each under a lease';

CREATE FUNCTION ratchet.claim(
    queues text[],
    worker text,
    batch int = 1,
    lease interval = NULL,
    kinds text[] = NULL,
    wait interval = NULL,
    node text = NULL,
    session boolean = false
) RETURNS SETOF ratchet.claimed
    LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'ratchet_claim_queues';
COMMENT ON FUNCTION ratchet.claim(text[], text, int, interval, text[], interval, text, boolean)
    IS 'hands out up to batch jobs of several queues, left to right';

CREATE PROCEDURE ratchet.wait(queues text[], timeout interval, kinds text[] = NULL, INOUT ready boolean = NULL)
    LANGUAGE C AS 'MODULE_PATHNAME', 'ratchet_wait';
COMMENT ON PROCEDURE ratchet.wait IS 'returns when there may be work in one of the queues, or false after the timeout; needs autocommit';

CREATE PROCEDURE ratchet.await(id uuid, timeout interval, INOUT state ratchet.job_state = NULL, INOUT result jsonb = NULL)
    LANGUAGE C AS 'MODULE_PATHNAME', 'ratchet_await';
COMMENT ON PROCEDURE ratchet.await IS 'returns when the job is finished, or with its present state after the timeout; state is NULL for an unknown job; needs autocommit';

CREATE FUNCTION ratchet.complete(id uuid, token uuid, result jsonb = NULL, strict boolean = false) RETURNS boolean
    LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'ratchet_complete';
COMMENT ON FUNCTION ratchet.complete IS 'the job succeeded; false (strict: RT005) when the lease is lost';

CREATE FUNCTION ratchet.complete_many(ids uuid[], tokens uuid[], results jsonb[] = NULL, strict boolean = false) RETURNS SETOF uuid
    LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'ratchet_complete_many';
COMMENT ON FUNCTION ratchet.complete_many IS 'these jobs succeeded; returns those completed now';

CREATE FUNCTION ratchet.complete_and_claim(
    ids uuid[],
    tokens uuid[],
    queue text,
    worker text,
    batch int = 1,
    results jsonb[] = NULL,
    strict boolean = false,
    lease interval = NULL,
    kinds text[] = NULL,
    node text = NULL
) RETURNS SETOF ratchet.claimed
    LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'ratchet_complete_and_claim';
COMMENT ON FUNCTION ratchet.complete_and_claim IS 'complete_many and claim in one round trip';

CREATE FUNCTION ratchet.fail(id uuid, token uuid, error text, retryable boolean = true, retry_in interval = NULL, detail jsonb = NULL)
    RETURNS ratchet.job_state
    LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'ratchet_fail';
COMMENT ON FUNCTION ratchet.fail IS 'the run failed; answers pending (will retry) or failed, NULL when the lease is lost';

CREATE FUNCTION ratchet.skip(id uuid, token uuid, reason text = NULL) RETURNS boolean
    LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'ratchet_skip';
COMMENT ON FUNCTION ratchet.skip IS 'the worker found that there is nothing to do';

CREATE FUNCTION ratchet.release(id uuid, token uuid, delay interval = '0', reason text = NULL) RETURNS boolean
    LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'ratchet_release';
COMMENT ON FUNCTION ratchet.release IS 'gives the job back without using up an attempt';

CREATE FUNCTION ratchet.heartbeat(ids uuid[], tokens uuid[], lease interval = NULL, OUT id uuid, OUT status text) RETURNS SETOF record
    LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'ratchet_heartbeat';
COMMENT ON FUNCTION ratchet.heartbeat IS 'extends leases without ever waiting: ok, busy, canceled or lost';

CREATE FUNCTION ratchet.progress(id uuid, token uuid, fraction float8, message text = NULL) RETURNS boolean
    LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'ratchet_progress';
COMMENT ON FUNCTION ratchet.progress IS 'reports how far the run has come';

-------------------------------------------------------------------------------
-- Operators
-------------------------------------------------------------------------------

CREATE FUNCTION ratchet.retry(id uuid) RETURNS boolean
    LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'ratchet_retry';
COMMENT ON FUNCTION ratchet.retry IS 'gives a failed job a new set of attempts';
CREATE FUNCTION ratchet.retry_many(queue text = NULL, kind text = NULL, tag text = NULL, max int = 1000) RETURNS int
    LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'ratchet_retry_many';
COMMENT ON FUNCTION ratchet.retry_many IS 'retries failed jobs; answers how many';
CREATE FUNCTION ratchet.pause(id uuid) RETURNS boolean
    LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'ratchet_pause';
COMMENT ON FUNCTION ratchet.pause IS 'sets a pending or failed job aside';
CREATE FUNCTION ratchet.resume(id uuid) RETURNS boolean
    LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'ratchet_resume';
COMMENT ON FUNCTION ratchet.resume IS 'puts a paused job back where it was';
CREATE FUNCTION ratchet.cancel(id uuid, reason text = NULL) RETURNS boolean
    LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'ratchet_cancel';
COMMENT ON FUNCTION ratchet.cancel IS 'stops a pending, running or paused job for good';
CREATE FUNCTION ratchet.cancel_many(queue text = NULL, kind text = NULL, tag text = NULL, max int = 1000) RETURNS int
    LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'ratchet_cancel_many';
COMMENT ON FUNCTION ratchet.cancel_many IS 'cancels jobs; answers how many';
CREATE FUNCTION ratchet.rerun(id uuid) RETURNS uuid
    LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'ratchet_rerun';
COMMENT ON FUNCTION ratchet.rerun IS 'makes a new job from a finished one, archived or not';
CREATE FUNCTION ratchet.reschedule(id uuid, run_at timestamptz = NULL, priority int = NULL) RETURNS boolean
    LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'ratchet_reschedule';
COMMENT ON FUNCTION ratchet.reschedule IS 'changes when and how urgently a pending job runs';
CREATE FUNCTION ratchet.forget(id uuid) RETURNS boolean
    LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'ratchet_forget';
COMMENT ON FUNCTION ratchet.forget IS 'deletes a finished job, archived or not, with its keys and errors';

CREATE FUNCTION ratchet.configure_queue(
    queue text,
    priority int = NULL,
    max_attempts int = NULL,
    backoff text = NULL,
    backoff_base interval = NULL,
    backoff_max interval = NULL,
    jitter boolean = NULL,
    timeout interval = NULL,
    lease interval = NULL,
    expires_in interval = NULL,
    keep_for interval = NULL,
    archive_after interval = NULL,
    max_running int = NULL,
    max_per_key int = NULL,
    rate_limit int = NULL,
    rate_period interval = NULL,
    fair boolean = NULL,
    events text = NULL
) RETURNS void
    LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'ratchet_configure_queue';
COMMENT ON FUNCTION ratchet.configure_queue IS 'sets a queue''s defaults; what is NULL stays as it is';
CREATE FUNCTION ratchet.pause_queue(queue text) RETURNS boolean
    LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'ratchet_pause_queue';
COMMENT ON FUNCTION ratchet.pause_queue IS 'the queue takes jobs and hands out none';
CREATE FUNCTION ratchet.resume_queue(queue text) RETURNS boolean
    LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'ratchet_resume_queue';
COMMENT ON FUNCTION ratchet.resume_queue IS 'ends pause_queue; false when the queue was not paused';

-------------------------------------------------------------------------------
-- Nodes and locks
-------------------------------------------------------------------------------

CREATE FUNCTION ratchet.node_heartbeat(node text, info jsonb = NULL) RETURNS void
    LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'ratchet_node_heartbeat';
COMMENT ON FUNCTION ratchet.node_heartbeat IS 'says that a node is alive; when it stops saying so for ratchet.node_timeout its jobs and locks are freed';
CREATE FUNCTION ratchet.drain(node text = NULL) RETURNS boolean
    LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'ratchet_drain';
COMMENT ON FUNCTION ratchet.drain IS 'the node (NULL: every node) claims nothing and finishes what it runs';
CREATE FUNCTION ratchet.undrain(node text = NULL) RETURNS boolean
    LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'ratchet_undrain';
COMMENT ON FUNCTION ratchet.undrain IS 'ends the drain() with the same argument; false when there was none';
CREATE FUNCTION ratchet.try_lock(name text, owner text, ttl interval) RETURNS boolean
    LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'ratchet_try_lock';
COMMENT ON FUNCTION ratchet.try_lock IS 'takes a free or expired lock, or refreshes one''s own; false when somebody else has it';
CREATE FUNCTION ratchet.renew_lock(name text, owner text, ttl interval) RETURNS boolean
    LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'ratchet_renew_lock';
COMMENT ON FUNCTION ratchet.renew_lock IS 'extends a lock that the owner still has';
CREATE FUNCTION ratchet.unlock(name text, owner text) RETURNS boolean
    LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'ratchet_unlock';
COMMENT ON FUNCTION ratchet.unlock IS 'gives back a lock; false when the owner does not have it';

-------------------------------------------------------------------------------
-- Maintenance
-------------------------------------------------------------------------------

CREATE FUNCTION ratchet.maintenance_step(duty text) RETURNS bigint
    LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'ratchet_maintenance_step';
COMMENT ON FUNCTION ratchet.maintenance_step IS 'performs one duty once: guard, nodes, recover, timeout, expire, locks, archive, partitions, purge or keys; answers how many rows it changed';
CREATE PROCEDURE ratchet.run_maintenance()
    LANGUAGE C AS 'MODULE_PATHNAME', 'ratchet_run_maintenance';
COMMENT ON PROCEDURE ratchet.run_maintenance IS 'performs every duty once, each in a transaction of its own when called outside a transaction block';

-------------------------------------------------------------------------------
-- Access
-------------------------------------------------------------------------------

CREATE FUNCTION ratchet.grant_access(role regrole, access text, queue text = NULL) RETURNS void
    LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'ratchet_grant_access';
COMMENT ON FUNCTION ratchet.grant_access IS 'lets a role enqueue, work, operate or observe, in one queue or (NULL) in all';
CREATE FUNCTION ratchet.revoke_access(role regrole, access text, queue text = NULL) RETURNS void
    LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'ratchet_revoke_access';
COMMENT ON FUNCTION ratchet.revoke_access IS 'takes back what grant_access gave with the same arguments';
CREATE FUNCTION ratchet.has_access(queue text, access text) RETURNS boolean
    LANGUAGE C STABLE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'ratchet_has_access';
COMMENT ON FUNCTION ratchet.has_access IS 'whether the current role has this access to the queue (NULL: to any queue)';

-------------------------------------------------------------------------------
-- What people look at
-------------------------------------------------------------------------------

-- Barrier views: no function of the caller sees a row that the filter has not
-- passed. They read the tables as the extension's owner and filter by the
-- caller's rights. None shows a token. The filter of ratchet.jobs stands outside
-- the UNION ALL: the planner flattens a view that is nothing but a UNION ALL, and
-- the barrier with it.
CREATE VIEW ratchet.jobs WITH (security_barrier = true) AS
SELECT id, queue, kind, payload, state, priority, scheduled_at, created_at, attempt, max_attempts, crashes, version,
       picked_by, picked_at, node, lease, lease_expires_at, timeout, expires_at, keep_until, paused_from,
       backoff, backoff_base, backoff_max, jitter, idempotency_key, business_key, concurrency_key, resource, circuit,
       batch_id, waiting_on, result, last_error, progress, progress_message, tags, meta, enqueued_by,
       started_at, finished_at, archived
  FROM (SELECT id, queue, kind, payload, state, priority, scheduled_at, created_at, attempt, max_attempts, crashes, version,
               picked_by, picked_at, node, lease, lease_expires_at, timeout, expires_at, keep_until, paused_from,
               backoff, backoff_base, backoff_max, jitter, idempotency_key, business_key, concurrency_key, resource, circuit,
               batch_id, waiting_on, result, last_error, progress, progress_message, tags, meta, enqueued_by,
               started_at, finished_at, false AS archived
          FROM ratchet.job
        UNION ALL
        SELECT id, queue, kind, payload, state, priority, scheduled_at, created_at, attempt, max_attempts, crashes, version,
               picked_by, picked_at, node, lease, NULL, timeout, expires_at, keep_until, NULL,
               backoff, backoff_base, backoff_max, jitter, idempotency_key, business_key, concurrency_key, resource, circuit,
               batch_id, 0, result, last_error, progress, progress_message, tags, meta, enqueued_by,
               started_at, finished_at, true
          FROM ratchet.job_archive) AS everywhere
 WHERE ratchet.has_access(queue, 'observe');
COMMENT ON VIEW ratchet.jobs IS 'live and archived jobs of the queues the caller may observe';

CREATE FUNCTION ratchet.waiter_figures(
    OUT slots bigint, OUT waiting bigint, OUT wakeups bigint, OUT passed_on bigint, OUT overflows bigint
) LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'ratchet_waiter_figures';
COMMENT ON FUNCTION ratchet.waiter_figures IS 'what ratchet.waiter_stat shows';
CREATE VIEW ratchet.waiter_stat WITH (security_barrier = true) AS
SELECT slots, waiting, wakeups, passed_on, overflows FROM ratchet.waiter_figures();
COMMENT ON VIEW ratchet.waiter_stat IS 'sessions of this server that wait for work or for a job: slots in shared memory (0: not preloaded), used ones, wake-ups sent and passed on, waits that found no slot and polled';

CREATE VIEW ratchet.job_errors WITH (security_barrier = true) AS
SELECT job_id, queue, attempt, at, worker, error, detail
  FROM ratchet.job_error
 WHERE ratchet.has_access(queue, 'observe');
COMMENT ON VIEW ratchet.job_errors IS 'failed, timed-out and orphaned runs of the jobs the caller may observe';

CREATE VIEW ratchet.queues WITH (security_barrier = true) AS
SELECT * FROM ratchet.queue WHERE ratchet.has_access(queue, 'observe');
COMMENT ON VIEW ratchet.queues IS 'settings of the configured queues the caller may observe';

CREATE VIEW ratchet.node WITH (security_barrier = true) AS
SELECT n.node_id, n.heartbeat_at, n.started_at, n.info,
       EXISTS (SELECT FROM ratchet.draining d WHERE d.node = n.node_id OR d.node IS NULL) AS draining,
       (SELECT count(*) FROM ratchet.job j
         WHERE j.left_at IS NOT NULL AND j.state = 'running' AND j.node = n.node_id
           AND ratchet.has_access(j.queue, 'observe')) AS running
  FROM ratchet.node_heartbeats n
 WHERE ratchet.has_access(NULL, 'observe');
COMMENT ON VIEW ratchet.node IS 'nodes that heartbeat, with the number of jobs they run in the queues the caller may observe';

-- Figures from shared memory: empty when ratchet is not preloaded. The function
-- shows the workers of other databases, and their errors, to members of
-- pg_read_all_stats only.
CREATE FUNCTION ratchet.worker_figures(
    OUT process text,
    OUT database name,
    OUT pid int,
    OUT state text,
    OUT polling text,
    OUT since timestamptz,
    OUT last_pass timestamptz,
    OUT next_pass timestamptz,
    OUT passes bigint,
    OUT changed jsonb,
    OUT failures int,
    OUT last_error text,
    OUT last_error_at timestamptz
) RETURNS SETOF record
    LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'ratchet_worker_figures';
COMMENT ON FUNCTION ratchet.worker_figures IS 'what ratchet.worker_stat shows';

CREATE VIEW ratchet.worker_stat WITH (security_barrier = true) AS
SELECT process, database, pid, state, polling, since, last_pass, next_pass, passes, changed, failures, last_error, last_error_at
  FROM ratchet.worker_figures();
COMMENT ON VIEW ratchet.worker_stat IS 'the launcher and the background workers: what they do, did last and will do next';
COMMENT ON COLUMN ratchet.worker_stat.process IS 'launcher or worker';
COMMENT ON COLUMN ratchet.worker_stat.state IS 'launcher: running, stopped, out of workers or out of slots; worker: wanted, starting, probing, idle or working';
COMMENT ON COLUMN ratchet.worker_stat.polling IS 'how often the worker looks for what no timer told it about: burst, normal or deep idle';
COMMENT ON COLUMN ratchet.worker_stat.since IS 'when the process started, or began to be wanted';
COMMENT ON COLUMN ratchet.worker_stat.last_pass IS 'when duties were last performed (launcher: when pg_database was last read)';
COMMENT ON COLUMN ratchet.worker_stat.next_pass IS 'the latest time of the next pass; for a wanted worker its start';
COMMENT ON COLUMN ratchet.worker_stat.passes IS 'how often duties were performed (launcher: workers started)';
COMMENT ON COLUMN ratchet.worker_stat.changed IS 'rows changed by each duty';
COMMENT ON COLUMN ratchet.worker_stat.failures IS 'starts in a row that ended in an error';

-------------------------------------------------------------------------------
-- Dump and rights
-------------------------------------------------------------------------------

-- business_key is left out on purpose: the guard fills it while job is restored.
SELECT pg_catalog.pg_extension_config_dump('ratchet.job', '');
SELECT pg_catalog.pg_extension_config_dump('ratchet.job_archive_default', '');
SELECT pg_catalog.pg_extension_config_dump('ratchet.job_error', '');
SELECT pg_catalog.pg_extension_config_dump('ratchet.queue', '');
SELECT pg_catalog.pg_extension_config_dump('ratchet.idempotency_key', '');
SELECT pg_catalog.pg_extension_config_dump('ratchet.access', '');
SELECT pg_catalog.pg_extension_config_dump('ratchet.draining', '');

REVOKE ALL ON SCHEMA ratchet FROM PUBLIC;
REVOKE ALL ON ALL TABLES IN SCHEMA ratchet FROM PUBLIC;
REVOKE ALL ON ALL ROUTINES IN SCHEMA ratchet FROM PUBLIC;
REVOKE ALL ON TYPE ratchet.job_state, ratchet.claimed FROM PUBLIC;
