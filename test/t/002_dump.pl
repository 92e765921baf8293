# Dump and restore: whatever is in the tables arrives in the copy, in every format and without special flags, and the copy
# goes on working: guard, keys, leases, rights, settings, archive.

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RatchetNode;
use Test::More;

my $node = ratchet_node('main');
my $dir  = PostgreSQL::Test::Utils::tempdir();
my @guards = qw(zz_guard zz_guard_keys_insert zz_guard_keys_update zz_guard_truncate);

# Every table of the extension as lines of text that two databases can be compared by. left_at is derived again when a row
# comes in, and free rows of business_key need not come along; both are looked at below.
my %contents = (
    job => q{SELECT to_jsonb(t) - 'left_at' FROM ratchet.job t ORDER BY id},
    job_archive => q{SELECT tableoid::regclass, t FROM ratchet.job_archive t ORDER BY id},
    job_error   => q{SELECT t FROM ratchet.job_error t ORDER BY t},
    queue       => q{SELECT t FROM ratchet.queue t ORDER BY queue},
    draining    => q{SELECT t FROM ratchet.draining t ORDER BY t},
    access      => q{SELECT t FROM ratchet.access t ORDER BY t},
    idempotency_key => q{SELECT t FROM ratchet.idempotency_key t ORDER BY t},
    business_key    => q{SELECT t FROM ratchet.business_key t WHERE owner IS NOT NULL ORDER BY t},
    partitions      => q{SELECT c.relname, pg_get_expr(c.relpartbound, c.oid), x.indexdef
        FROM pg_inherits i JOIN pg_class c ON c.oid = inhrelid
        LEFT JOIN pg_indexes x ON x.schemaname = 'ratchet' AND x.tablename = c.relname
        WHERE inhparent = 'ratchet.job_archive'::regclass ORDER BY 1, 3},
    settings => q{SELECT reloptions FROM pg_class WHERE oid = 'ratchet.job'::regclass},
    # what each role may do, given by grant_access
    privileges => q{SELECT r.rolname, p.oid::regprocedure FROM pg_roles r, pg_proc p
        WHERE r.rolname ~* '^regress' AND pronamespace = 'ratchet'::regnamespace AND has_function_privilege(r.oid, p.oid, 'EXECUTE')
        ORDER BY 1, p.oid::regprocedure::text},
    view_privileges => q{SELECT r.rolname, c.relname FROM pg_roles r, pg_class c
        WHERE r.rolname ~* '^regress' AND relnamespace = 'ratchet'::regnamespace AND relkind IN ('r', 'v', 'p')
        AND has_table_privilege(r.oid, c.oid, 'SELECT') ORDER BY 1, 2});

sub contents
{
    my ($db, $name) = @_;
    return $node->safe_psql($db, "SET timezone = 'UTC'; $contents{$name}");
}

# The one job of a kind.
sub id_of
{
    my ($db, $kind) = @_;
    return $node->safe_psql($db, "SELECT id FROM ratchet.jobs WHERE kind = '$kind'");
}

# Run a tool of PostgreSQL; it must neither fail nor say anything.
sub run_silently
{
    my ($what, @command) = @_;
    local %ENV = $node->_get_env();
    my ($stdout, $stderr) = run_command([@command]);
    is($?, 0, "$what succeeds");
    is($stderr, '', "$what has nothing to say");
    return;
}

$node->safe_psql('postgres', q{
    CREATE ROLE regress_producer;
    CREATE ROLE regress_worker;
    CREATE ROLE "Regress ""odd"" Näme";
    CREATE DATABASE source TEMPLATE template0});
$node->safe_psql('source', q{
    CREATE EXTENSION ratchet;
    SELECT ratchet.grant_access('regress_producer', 'enqueue', 'q');
    SELECT ratchet.grant_access('regress_worker', 'work');
    SELECT ratchet.grant_access('"Regress ""odd"" Näme"', 'observe', 'q');
    SELECT ratchet.configure_queue('q', priority => 7, max_attempts => 2, backoff => 'fixed', backoff_base => '1 hour', jitter => false);
    SELECT ratchet.configure_queue('direct', archive_after => '0');
    SELECT ratchet.pause_queue('stopped');
    SELECT ratchet.drain('n2')});

# A job in each of the states, and of each way into them that leaves other traces.
$node->safe_psql('source', q{
    -- runs the oldest job of the queue "in": claims it, and calls what is given with its id and token
    CREATE FUNCTION pg_temp.run(action text) RETURNS text LANGUAGE plpgsql AS $$
    DECLARE c ratchet.claimed; answer text;
    BEGIN
        SELECT * INTO STRICT c FROM ratchet.claim('q', 'w1', lease => '1 hour', node => 'n1');
        EXECUTE format('SELECT (ratchet.%s)::text', action) INTO answer USING c.id, c.token;
        RETURN answer;
    END $$;
    SELECT ratchet.enqueue('succeeded', jsonb_build_object('text', repeat('päyload ', 20000)), queue => 'q', idempotency_key => 'i-succeeded', business_key => 'b-succeeded');
    SELECT pg_temp.run($$complete($1, $2, '{"answer": 42, "ü": [1, null]}')$$);
    SELECT ratchet.enqueue('failed', queue => 'q', business_key => 'b-failed', max_attempts => 5);
    SELECT pg_temp.run($$fail($1, $2, E'tab\t quote'' and \\backslash', false, detail => '{"code": 7}')$$);
    SELECT ratchet.enqueue('paused from failed', queue => 'q', business_key => 'b-paused-failed');
    SELECT ratchet.pause(id) FROM ratchet.job WHERE pg_temp.run($$fail($1, $2, 'once', false)$$) = 'failed' AND kind = 'paused from failed';
    SELECT ratchet.enqueue('retrying', queue => 'q', business_key => 'b-retrying');
    SELECT pg_temp.run($$fail($1, $2, 'try again')$$);
    SELECT ratchet.enqueue('skipped', queue => 'q');
    SELECT pg_temp.run($$skip($1, $2, 'not needed')$$);
    SELECT ratchet.enqueue('canceled after a run', queue => 'q');
    SELECT pg_temp.run($$release($1, $2, '1 hour', 'later')$$);
    SELECT ratchet.enqueue('canceled', queue => 'q', business_key => 'b-canceled');
    SELECT ratchet.cancel(id, 'why not') FROM ratchet.job WHERE kind LIKE 'canceled%';
    SELECT ratchet.enqueue('running', queue => 'q', business_key => 'b-running', timeout => '2 days');
    SELECT ratchet.progress(id, token, 0.25, 'a quarter'), ratchet.heartbeat(ARRAY[id], ARRAY[token], '3 hours')
      FROM ratchet.claim('q', 'w2');
    SELECT ratchet.enqueue('orphan', queue => 'q', lease => '1 ms');
    SELECT id FROM ratchet.claim('q', 'w3');
    SELECT ratchet.enqueue('expired', queue => 'q', run_at => now() - interval '2 days', expires_in => '1 day');
    SELECT ratchet.maintenance_step('expire');
    SELECT ratchet.enqueue('pending', '{"a": "\\\\ \" \u00e4"}', queue => 'q', priority => -3, run_at => now() + interval '1 day',
        backoff => 'linear', backoff_base => '10 s', backoff_max => '1 day', jitter => true, timeout => '1 min', lease => '90 s',
        expires_in => '100 days', keep_for => '200 days', idempotency_key => 'i-pending', business_key => 'b-pending',
        tags => ARRAY['x', 'NULL', '"quoted", {}'], meta => '{"k": {"n": 1.50}}');
    SELECT ratchet.enqueue('held', queue => 'q', hold => true, business_key => 'b-held');
    SELECT ratchet.enqueue('in a stopped queue', queue => 'stopped');
    -- the archive: this week's partition, one row of an older week in the default partition, keys of both
    SELECT ratchet.enqueue('archived', queue => 'direct', idempotency_key => 'i-archived', business_key => 'b-archived');
    SELECT ratchet.complete(id, token, '[1]') FROM ratchet.claim('direct', 'w1');
    SELECT ratchet.maintenance_step('partitions');
    INSERT INTO ratchet.job (id, created_at, queue, kind, payload, enqueued_by, max_attempts, scheduled_at, priority, state, finished_at, picked_at, attempt, result, tags)
    VALUES (gen_random_uuid(), now() - interval '60 days', 'q', 'archived long ago', '{}', 'postgres', 3, now() - interval '60 days', 0, 'succeeded',
            now() - interval '50 days', now() - interval '51 days', 1, 'null', '{old}');
    SELECT ratchet.maintenance_step('archive')});

is($node->safe_psql('source', q{SELECT string_agg(DISTINCT state::text, ' ' ORDER BY state::text) FROM ratchet.job}),
    'canceled expired failed paused pending running skipped succeeded', 'the source has jobs in all eight states');
is( $node->safe_psql('source', q{SELECT string_agg(kind || CASE WHEN tableoid = 'ratchet.job_archive_default'::regclass THEN ' in default' ELSE '' END, ', ' ORDER BY kind)
    FROM ratchet.job_archive}),
    'archived, archived long ago in default', 'and archived ones in both kinds of partition');

my %ids = map { $_ => id_of('source', $_) } ('succeeded', 'pending', 'held', 'running', 'orphan', 'archived', 'retrying');
my %token = map { $_ => $node->safe_psql('source', "SELECT token FROM ratchet.job WHERE kind = '$_'") } ('running', 'orphan');
my %source = map { $_ => contents('source', $_) } keys %contents;
isnt($source{$_}, '', "the source has something in $_") for sort keys %source;

sub check_contents
{
    my ($db) = @_;
    is(contents($db, $_), $source{$_}, "$db: $_ is the same") for sort keys %contents;
    is( $node->safe_psql($db, q{SELECT count(*) FROM ratchet.job WHERE left_at IS DISTINCT FROM
        CASE WHEN state = 'pending' OR paused_from = 'pending' THEN NULL ELSE coalesce(picked_at, finished_at) END}),
        '0', "$db: left_at is derived from the row");
    return;
}

sub guard_state
{
    my ($db) = @_;
    return $node->safe_psql($db, q{SELECT string_agg(tgname || ' ' || tgenabled::text, ', ' ORDER BY tgname) FROM pg_trigger
        WHERE tgrelid = 'ratchet.job'::regclass});
}

# The copy works; this changes it.
sub check_life
{
    my ($db) = @_;
    my $run = sub { return $node->safe_psql($db, $_[0]) };

    is(guard_state($db), join(', ', map { "$_ A" } @guards), "$db: the guard is on, always");
    sql_fails($node, $db, q{UPDATE ratchet.job SET state = 'pending' WHERE kind = 'succeeded'}, 'RT001', "$db: and does its work");

    # Keys.
    for my $kind ('pending', 'held', 'running', 'retrying')
    {
        sql_fails($node, $db, "SELECT ratchet.enqueue('second', queue => 'q', business_key => 'b-$kind')",
            'RT002', "$db: business key of $kind is taken", $ids{$kind});
    }
    for my $kind ('succeeded', 'failed', 'paused-failed', 'canceled')
    {
        is($run->("SELECT ratchet.enqueue('successor', queue => 'q', business_key => 'b-$kind') IS NOT NULL"),
            't', "$db: business key of $kind is free");
    }
    is($run->("SELECT ratchet.enqueue('succeeded', queue => 'q', idempotency_key => 'i-succeeded')"),
        $ids{succeeded}, "$db: idempotency key of a finished job finds it");
    is($run->("SELECT ratchet.enqueue('archived', queue => 'direct', idempotency_key => 'i-archived')"),
        $ids{archived}, "$db: idempotency key of an archived job finds it");
    is($run->("SELECT ratchet.enqueue('pending', queue => 'q', idempotency_key => 'i-pending')"),
        $ids{pending}, "$db: idempotency key of a pending job finds it");

    # Leases. The orphan's was over before the dump.
    is($run->("SELECT ratchet.maintenance_step('recover')"), '1', "$db: the job with an expired lease is recovered");
    is($run->("SELECT state || ' ' || crashes FROM ratchet.job WHERE id = '$ids{orphan}'"), 'pending 1', "$db: and pending again");
    is($run->("SELECT ratchet.complete('$ids{orphan}', '$token{orphan}')"), 'f', "$db: its old token is fenced");
    is($run->("SELECT status FROM ratchet.heartbeat(ARRAY['$ids{running}']::uuid[], ARRAY['$token{running}']::uuid[])"),
        'ok', "$db: the running job's token is good for a heartbeat");
    is($run->("SELECT ratchet.complete('$ids{running}', '$token{running}', strict => true)"), 't', "$db: and completes the job");
    is($run->("SELECT ratchet.enqueue('successor', queue => 'q', business_key => 'b-running') IS NOT NULL"),
        't', "$db: which releases its business key");

    # Settings.
    $run->("SELECT ratchet.enqueue('new', queue => 'q')");
    is($run->("SELECT priority || ' ' || max_attempts FROM ratchet.jobs WHERE kind = 'new'"), '7 2', "$db: queue defaults apply");
    is($run->("SELECT count(*) FROM ratchet.claim('stopped', 'w')"), '0', "$db: a paused queue hands out nothing");
    is($run->("SELECT ratchet.resume_queue('stopped')"), 't', "$db: until it is resumed");
    is($run->("SELECT kind FROM ratchet.claim('stopped', 'w')"), 'in a stopped queue', "$db: and then does");

    is($run->("SELECT count(*) FROM ratchet.claim('q', 'w', node => 'n2')"), '0', "$db: a draining node gets nothing");

    # Rights.
    is($run->("SET ROLE regress_producer; SELECT ratchet.enqueue('by producer', queue => 'q') IS NOT NULL"),
        't', "$db: enqueue access works");
    sql_fails($node, $db, "SET ROLE regress_producer; SELECT ratchet.enqueue('by producer', queue => 'other')",
        '42501', "$db: in its queue only");
    is($run->("SET ROLE regress_worker; SELECT count(*) FROM ratchet.claim('direct', 'w')"), '0', "$db: work access works");
    is($run->(q{SET ROLE "Regress ""odd"" Näme"; SELECT string_agg(DISTINCT queue, ' ') FROM ratchet.jobs}),
        'q', "$db: observe access shows its queue only");

    # The archive goes on where it was.
    my $partitions = contents($db, 'partitions');
    $run->("SELECT ratchet.enqueue('archived later', queue => 'direct')");
    is($run->("SELECT ratchet.complete(id, token) FROM ratchet.claim('direct', 'w')"), 't', "$db: a job goes to the archive");
    is($run->("SELECT count(*) FROM ratchet.job_archive_default WHERE kind = 'archived later'"), '0', "$db: into the partition that was restored");
    is($run->("SELECT ratchet.maintenance_step('partitions')"), '1', "$db: the default partition's week gets a partition");
    isnt(contents($db, 'partitions'), $partitions, "$db: which is there");
    is($run->("SELECT count(*) FROM ratchet.jobs WHERE archived"), '3', "$db: nothing archived is lost by it");
    return;
}

# With no special flags, in three formats.
run_silently('pg_dump, custom', 'pg_dump', '-Fc', '-f', "$dir/custom", 'source');
run_silently('pg_dump, plain', 'pg_dump', '-f', "$dir/plain.sql", 'source');
run_silently('pg_dump, directory', 'pg_dump', '-Fd', '-j', '2', '-f', "$dir/directory", 'source');
run_silently('pg_dump, via the partition root', 'pg_dump', '-Fc', '--load-via-partition-root', '-f', "$dir/root", 'source');

my %restore = (
    custom    => [ 'pg_restore', '-d', 'custom', "$dir/custom" ],
    plain     => [ 'psql', '-Xq', '-v', 'ON_ERROR_STOP=1', '-d', 'plain', '-o', "$dir/plain.out", '-f', "$dir/plain.sql" ],
    directory => [ 'pg_restore', '-j', '2', '-d', 'directory', "$dir/directory" ],
    root      => [ 'pg_restore', '-1', '-d', 'root', "$dir/root" ]);

for my $db (sort keys %restore)
{
    $node->safe_psql('postgres', "CREATE DATABASE $db TEMPLATE template0");
    run_silently("restore, $db", @{ $restore{$db} });
    check_contents($db);
    check_life($db);
}

# A copy can be dumped again, and dropping the extension takes the restored partitions along.
run_silently('pg_dump of a copy', 'pg_dump', '-Fc', '-f', "$dir/again", 'custom');
$node->safe_psql('custom', 'DROP EXTENSION ratchet');
is($node->safe_psql('custom', q{SELECT count(*) FROM pg_namespace WHERE nspname = 'ratchet'}), '0', 'DROP EXTENSION leaves nothing in a copy');

# Data only, with triggers disabled, into a fresh extension: the guard is off meanwhile and comes back as an ordinary
# trigger. Partitions made at run time are not there yet, so their rows are left out.
run_silently('pg_dump, data only', 'pg_dump', '-Fc', '--data-only', '-T', 'ratchet.job_archive_2*', '-f', "$dir/data", 'source');
$node->safe_psql('postgres', 'CREATE DATABASE data TEMPLATE template0');
$node->safe_psql('data', 'CREATE EXTENSION ratchet');
run_silently('restore, data only', 'pg_restore', '--data-only', '--disable-triggers', '-d', 'data', "$dir/data");
is(contents('data', $_), $source{$_}, "data: $_ is the same") for ('job', 'job_error', 'queue', 'access', 'draining', 'idempotency_key');
is(guard_state('data'), join(', ', map { "$_ O" } @guards), 'data: the guard came back as an ordinary trigger');

my $position = log_position($node);
$node->safe_psql('data', 'CALL ratchet.run_maintenance()');
is(guard_state('data'), join(', ', map { "$_ A" } @guards), 'data: run_maintenance sets it to ALWAYS');
ok($node->log_contains(qr/ratchet: the guard .* ENABLE ALWAYS/, $position), 'data: and says so in the log');
is(contents('data', 'business_key'), $source{business_key}, 'data: and takes the business keys of the rows that came in');
is($node->safe_psql('data', q{SELECT count(*) FROM pg_trigger JOIN pg_class c ON c.oid = tgrelid WHERE relnamespace = 'ratchet'::regnamespace AND tgenabled <> 'A'}),
    '0', 'data: the triggers of the other tables too');
sql_fails($node, 'data', q{SELECT ratchet.enqueue('second', queue => 'q', business_key => 'b-held')}, 'RT002', 'data: which hold', $ids{held});
sql_fails($node, 'data', q{SET session_replication_role = replica; UPDATE ratchet.job SET state = 'pending' WHERE kind = 'succeeded'},
    'RT001', 'data: the guard guards in every session_replication_role');
$position = log_position($node);
$node->safe_psql('data', 'CALL ratchet.run_maintenance()');
ok(!$node->log_contains(qr/ratchet: the guard .* ENABLE ALWAYS/, $position), 'data: once');

done_testing();
