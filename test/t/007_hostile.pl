# Hostile surroundings: a database owner who sets search_path and everything else he may, functions and operators that lie in
# wait for a superuser's call, roles that try what they have no right to, and table locks held by others.

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RatchetNode;
use Test::More;

my $node = ratchet_node('main', extension => 0);

sub sql { return $node->safe_psql('hostile', $_[0]); }

$node->safe_psql('postgres', q{
    CREATE ROLE regress_dba LOGIN;
    CREATE ROLE regress_user LOGIN;
    CREATE DATABASE hostile OWNER regress_dba});
sql(q{CREATE EXTENSION ratchet;
    SELECT ratchet.grant_access('regress_dba', access, 'his') FROM unnest(ARRAY['enqueue', 'work', 'operate', 'observe']) access;
    SELECT ratchet.grant_access('regress_user', 'observe', 'open')});

# Everything that the functions do, in one script; what it prints depends on nothing but the jobs.
my $script = q{
    SELECT ratchet.configure_queue('s', priority => 2, backoff => 'fixed', backoff_base => '1 hour', jitter => false, lease => '10 minutes');
    SELECT ratchet.configure_queue('direct', archive_after => '0');
    SELECT count(ratchet.enqueue('k' || n, '{"a": [1, null]}', queue => 's', business_key => 'b' || n, idempotency_key => 'i' || n, tags => ARRAY['t', 'NULL'], expires_in => '2 days')) FROM generate_series(1, 6) n;
    SELECT count(*) FROM ratchet.enqueue_many('[{"kind": "json", "queue": "s", "run_at": "2020-02-03 04:05:06+00", "timeout": "1 min", "tags": ["x"], "idempotency_key": "j"}]');
    SELECT kind, attempt, priority, timeout = interval '1 minute', scheduled_at = timestamptz 'epoch' + interval '1580702706 s' FROM ratchet.claim('s', 'w');
    SELECT id AS i1, token AS t1 FROM ratchet.claim('s', 'w', kinds => ARRAY['k1']) \gset
    SELECT id AS i2, token AS t2 FROM ratchet.claim(ARRAY['none', 's'], 'w', kinds => ARRAY['k2']) \gset
    SELECT id AS i3, token AS t3 FROM ratchet.claim('s', 'w', kinds => ARRAY['k3']) \gset
    SELECT ratchet.complete(:'i1', :'t1', '1', strict => true);
    SELECT ratchet.fail(:'i2', :'t2', 'an error', detail => '{}');
    SELECT status FROM ratchet.heartbeat(ARRAY[:'i3']::uuid[], ARRAY[:'t3']::uuid[]);
    SELECT ratchet.progress(:'i3', :'t3', 0.5, 'half');
    SELECT ratchet.release(:'i3', :'t3', '1 hour');
    SELECT ratchet.reschedule(:'i3', '2021-01-01 00:00+00', -5);
    SELECT ratchet.pause(:'i3'), ratchet.resume(:'i3'), ratchet.cancel(:'i3', 'reason');
    SELECT ratchet.rerun(:'i1') IS NOT NULL;
    SELECT ratchet.cancel_many('s', tag => 't', max => 2), ratchet.retry_many('s');
    SELECT ratchet.forget(:'i1');
    SELECT ratchet.node_heartbeat('n'), ratchet.drain('n'), ratchet.undrain('n');
    SELECT ratchet.try_lock('l', 'o', '1 hour'), ratchet.try_lock('l', 'p', '1 hour'), ratchet.renew_lock('l', 'o', '2 hours'), ratchet.unlock('l', 'o');
    SELECT count(ratchet.enqueue('direct', queue => 'direct'));
    SELECT ratchet.complete(id, token) FROM ratchet.claim('direct', 'w');
    INSERT INTO ratchet.job (id, kind, queue, state, finished_at, picked_at, attempt) SELECT gen_random_uuid(), 'old', 's', 'succeeded', at, at, 1
      FROM (SELECT date_trunc('week', now() AT TIME ZONE 'UTC') AT TIME ZONE 'UTC' - interval '1 s' AS at) last_second_of_last_week;
    SELECT ratchet.pause_queue('s'), ratchet.resume_queue('s');
    SELECT ratchet.grant_access('regress_user', 'work', 's'), ratchet.revoke_access('regress_user', 'work', 's');
    CALL ratchet.run_maintenance();
    SELECT state, count(*) FROM ratchet.jobs GROUP BY state ORDER BY state;
    SELECT count(*) FROM ratchet.job_errors;
    SELECT count(*) FROM ratchet.queues;
    SELECT relname FROM pg_catalog.pg_class WHERE relnamespace OPERATOR(pg_catalog.=) 'ratchet'::regnamespace AND relname LIKE 'job_archive_2%' AND relkind = 'r' ORDER BY 1;
};

# As it is in a friendly database.
$node->safe_psql('postgres', 'CREATE DATABASE friendly');
my $expected = $node->safe_psql('friendly', "CREATE EXTENSION ratchet;\n$script");
like($expected, qr/succeeded/, 'the script works in a friendly database');

# Everything in the way that can be put there: each of these, if called, fails with the name of whom it was called by.
sub traps
{
    my ($schema) = @_;
    my $trap = q{LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'trapped %', current_user; END $$};
    my $traps = '';

    for my $function ('now() RETURNS timestamptz', 'clock_timestamp() RETURNS timestamptz', 'date_trunc(text, timestamp) RETURNS timestamp',
        'date_trunc(text, timestamptz) RETURNS timestamptz', 'timezone(text, timestamptz) RETURNS timestamp',
        'timezone(text, timestamp) RETURNS timestamptz', 'has_access(text, text) RETURNS bool', 'is_terminal(ratchet.job_state) RETURNS bool',
        'make_interval(int, int, int, int, int, int, float8) RETURNS interval', 'pg_notify(text, text) RETURNS void', 'gen_random_uuid() RETURNS uuid',
        'upper(text) RETURNS text')
    {
        $traps .= "CREATE FUNCTION $schema.$function $trap;\n";
    }
    my $n = 0;
    for my $type ('ratchet.job_state', 'text', 'uuid', 'timestamptz', 'name', 'oid', 'int', '"char"', 'interval', 'text[]')
    {
        $n++;
        $traps .= "CREATE FUNCTION $schema.trap$n($type, $type) RETURNS bool $trap;\n";
        $traps .= "CREATE OPERATOR $schema.$_ (LEFTARG = $type, RIGHTARG = $type, FUNCTION = $schema.trap$n);\n" for ('=', '<>', '<', '<=', '>', '>=', '~', '~~');
    }
    $traps .= "CREATE FUNCTION $schema.any(ratchet.job_state, text) RETURNS bool $trap; CREATE OPERATOR $schema.= (LEFTARG = ratchet.job_state, RIGHTARG = text, FUNCTION = $schema.any);\n";
    $traps .= "CREATE TABLE $schema.$_ (trap int);\n" for ('job', 'queue', 'access', 'job_archive', 'job_archive_default', 'job_error', 'idempotency_key',
        'business_key', 'lock', 'node_heartbeats', 'draining', 'pg_class', 'pg_proc', 'pg_trigger', 'pg_inherits', 'pg_extension');
    return $traps;
}

$node->safe_psql('hostile', "SET ROLE regress_dba; CREATE SCHEMA mal;\n" . traps('mal'));
sql(q{SET ROLE regress_dba; ALTER DATABASE hostile SET search_path = mal, pg_catalog});
my $trapped = sql_error($node, 'hostile', q{SELECT now()});
like($trapped, qr/trapped postgres/, 'the traps work: what is not qualified runs as the superuser who calls');

# Calls whose arguments are constants, so that nothing but ratchet looks up a name.
my @calls = (
    q{SELECT ratchet.configure_queue('s', priority => 2, jitter => false)},
    q{SELECT ratchet.configure_queue('direct', archive_after => '0')},
    q{SELECT ratchet.enqueue('k', queue => 's', business_key => 'b', idempotency_key => 'i', tags => '{t}', expires_in => '2 days')},
    q{SELECT ratchet.enqueue('k', queue => 's', idempotency_key => 'i')},
    q{SELECT ratchet.enqueue_many('k', '{"{}","{}","{}"}', queue => 's')},
    q{SELECT ratchet.enqueue_many('[{"kind": "k", "queue": "s", "run_at": "2020-02-03 04:05:06+00", "expires_in": "1 day"}]')},
    q{SELECT ratchet.enqueue('d', queue => 'direct')},
    q{SELECT id AS i, token AS t FROM ratchet.claim('direct', 'w') \gset},
    q{SELECT ratchet.complete(:'i', :'t', '1', strict => true)},
    q{SELECT id AS i, token AS t FROM ratchet.claim('{none,s}'::text[], 'w', kinds => '{k}') \gset},
    q{SELECT ratchet.progress(:'i', :'t', 0.5, 'half')},
    q{SELECT ratchet.heartbeat(array[:'i'::uuid], array[:'t'::uuid])},
    q{SELECT ratchet.fail(:'i', :'t', 'an error', false, detail => '{}')},
    q{SELECT ratchet.pause(:'i')},
    q{SELECT ratchet.resume(:'i')},
    q{SELECT ratchet.retry(:'i')},
    q{SELECT ratchet.reschedule(:'i', '2021-01-01 00:00+00', -5)},
    q{SELECT id AS i, token AS t FROM ratchet.claim('s', 'w') \gset},
    q{SELECT ratchet.release(:'i', :'t')},
    q{SELECT id AS i, token AS t FROM ratchet.claim('s', 'w') \gset},
    q{SELECT ratchet.skip(:'i', :'t', 'why')},
    q{SELECT ratchet.rerun(:'i')},
    q{SELECT ratchet.forget(:'i')},
    q{SELECT id AS i, token AS t FROM ratchet.claim('s', 'w', lease => '1 ms') \gset},
    q{SELECT ratchet.complete_and_claim('{}', '{}', 's', 'w')},
    q{SELECT ratchet.cancel_many('s', tag => 't', max => 2)},
    q{SELECT ratchet.retry_many('s')},
    q{SELECT ratchet.pause_queue('s')},
    q{SELECT ratchet.resume_queue('s')},
    q{SELECT ratchet.node_heartbeat('n')},
    q{SELECT ratchet.drain('n')},
    q{SELECT ratchet.undrain('n')},
    q{SELECT ratchet.try_lock('l', 'o', '1 hour')},
    q{SELECT ratchet.renew_lock('l', 'o', '1 hour')},
    q{SELECT ratchet.unlock('l', 'o')},
    q{SELECT ratchet.grant_access('regress_user', 'work', 's')},
    q{SELECT ratchet.revoke_access('regress_user', 'work', 's')},
    (map { "SELECT ratchet.maintenance_step('$_')" } qw(guard nodes recover timeout expire locks archive partitions purge keys)),
    q{CALL ratchet.run_maintenance()},
    q{SELECT * FROM ratchet.jobs},
    q{SELECT * FROM ratchet.job_errors},
    q{SELECT * FROM ratchet.queues},
    q{SELECT * FROM ratchet.node},
    q{SELECT * FROM ratchet.transition});
my $calls = join ";\n", @calls;
$calls =~ s/(\\gset);/$1/g;

is(sql_error($node, 'hostile', $calls), '', 'a superuser calls every function under a hostile search_path of the database, and no trap is met');
is(sql_error($node, 'hostile', traps('pg_temp') . "SET search_path = pg_temp, mal, pg_catalog;\n$calls"),
    '', 'nor with traps in the temporary schema before everything else');
# Also the guard's own triggers, whoever the writer is.
is(sql_error($node, 'hostile', q{UPDATE ratchet.job SET priority = 1 WHERE state OPERATOR(pg_catalog.=) 'pending'::ratchet.job_state}), '', 'nor by the guard');
$node->safe_psql('postgres', 'ALTER DATABASE hostile RESET search_path');
is(sql('SELECT count(*) FROM ratchet.jobs') > 3 ? 'yes' : 'no', 'yes', 'they have done something');
is(sql(q{SELECT count(*) FROM ratchet.job_archive WHERE tableoid::regclass::text ~ '_2[0-9]{7}$'}) > 0 ? 'yes' : 'no', 'yes', 'and made a partition');

# All other settings that a database owner may choose: results do not depend on them.
$node->safe_psql('postgres', 'CREATE DATABASE settings OWNER regress_dba');
$node->safe_psql('settings', 'CREATE EXTENSION ratchet');
my %settings = (
    DateStyle => 'German', IntervalStyle => 'sql_standard', TimeZone => 'Pacific/Kiritimati', array_nulls => 'off', transform_null_equals => 'on',
    standard_conforming_strings => 'off', quote_all_identifiers => 'on', default_transaction_isolation => 'repeatable read', row_security => 'off',
    enable_indexscan => 'off', enable_indexonlyscan => 'off', enable_seqscan => 'off', extra_float_digits => '-15', bytea_output => 'escape', check_function_bodies => 'off',
    constraint_exclusion => 'on', plan_cache_mode => 'force_generic_plan', jit => 'on', jit_above_cost => '0', work_mem => '64kB',
    default_transaction_deferrable => 'on', synchronous_commit => 'off', escape_string_warning => 'on', from_collapse_limit => '1', xmloption => 'document');
for my $name (sort keys %settings)
{
    $node->safe_psql('postgres', "SET ROLE regress_dba; ALTER DATABASE settings SET $name = '$settings{$name}'");
}
my ($stdout, $stderr) = ('', '');
$node->psql('settings', $script, stdout => \$stdout, stderr => \$stderr, on_error_stop => 1);
is($stdout, $expected, 'the script answers the same under every other setting');
is($stderr, '', 'without errors and warnings');
is($node->safe_psql('settings', q{SET TimeZone = 'UTC'; SET DateStyle = 'ISO'; SELECT string_agg(pg_get_expr(relpartbound, oid), ' ' ORDER BY relname) FROM pg_class WHERE relname ~ '^job_archive_2[0-9]{7}$'}),
    $node->safe_psql('friendly', q{SET TimeZone = 'UTC'; SELECT string_agg(pg_get_expr(relpartbound, oid), ' ' ORDER BY relname) FROM pg_class WHERE relname ~ '^job_archive_2[0-9]{7}$'}),
    'the weeks of the archive are the same');
# What the database's owner, with every access to a queue, cannot do to the tables and the extension.
my %forbidden = (
    'lock the table'      => 'BEGIN; LOCK TABLE ratchet.job IN ACCESS SHARE MODE',
    'lock rows'           => 'SELECT 1 FROM ratchet.job FOR UPDATE',
    'lock rows of a view' => 'SELECT 1 FROM ratchet.queues FOR UPDATE',
    'write through a view' => q{UPDATE ratchet.queues SET paused = true},
    'add a trigger'       => 'CREATE TRIGGER t BEFORE UPDATE ON ratchet.job FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()',
    'disable the guard'   => 'ALTER TABLE ratchet.job DISABLE TRIGGER ALL',
    'add a rule'          => 'CREATE RULE r AS ON UPDATE TO ratchet.job DO INSTEAD NOTHING',
    'add a policy'        => 'CREATE POLICY p ON ratchet.job USING (true)',
    'inherit'             => 'CREATE TABLE child () INHERITS (ratchet.job)',
    'reference it'        => 'CREATE TABLE referring (id uuid REFERENCES ratchet.job)',
    'copy it out'         => 'COPY ratchet.job TO STDOUT',
    'truncate it'         => 'TRUNCATE ratchet.job',
    'add a table'         => 'CREATE TABLE ratchet.mine (a int)',
    'add a function'      => 'CREATE FUNCTION ratchet.enqueue(int) RETURNS int LANGUAGE sql AS $$ SELECT 1 $$',
    'drop the extension'  => 'DROP EXTENSION ratchet',
    'drop the schema'     => 'DROP SCHEMA ratchet CASCADE',
    'comment on it'       => q{COMMENT ON TABLE ratchet.job IS 'mine'},
    'call the guard'      => 'CREATE TEMP TABLE t (a int); CREATE TRIGGER t BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION ratchet.guard()',
    'give himself more'   => q{SELECT ratchet.grant_access('regress_dba', 'work')},
    'change a limit'      => q{SELECT ratchet.has_access('his', 'work'); SET ratchet.max_payload_size = '200MB'});
sql_fails($node, 'hostile', "SET ROLE regress_dba; $forbidden{$_}", '42501', "the database's owner cannot $_") for sort keys %forbidden;

# Rights go by the role, and do not wait for the next one of its name.
sql(q{CREATE ROLE regress_leaver; SELECT ratchet.grant_access('regress_leaver', 'enqueue', 'his'); DROP OWNED BY regress_leaver; DROP ROLE regress_leaver; CREATE ROLE regress_leaver});
sql_fails($node, 'hostile', q{SET ROLE regress_leaver; SELECT ratchet.enqueue('k', queue => 'his')}, '42501', 'a new role does not have the rights of an old one');

# The guard on somebody's own table, made by a superuser even, is refused when it fires.
isnt(sql_error($node, 'hostile', 'CREATE TEMP TABLE t (a int); CREATE TRIGGER t BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION ratchet.guard(); INSERT INTO t VALUES (1)') =~ /^XX000/,
    1, 'the guard on another table is an error that a user can read');

# A barrier is one: a cheap function in the query sees no row that the caller may not see.
sql(q{SELECT ratchet.enqueue('secret kind', '{"secret": true}', queue => 'closed'), ratchet.enqueue('open kind', queue => 'open');
    ANALYZE ratchet.job});
my $peeking = '';
$node->psql('hostile', q{SET ROLE regress_user;
    CREATE FUNCTION pg_temp.peek(text, jsonb) RETURNS bool COST 0.0000001 LANGUAGE plpgsql AS $$ BEGIN RAISE NOTICE 'seen % %', $1, $2; RETURN true; END $$;
    SELECT count(*) FROM ratchet.jobs WHERE pg_temp.peek(kind, payload)}, stderr => \$peeking);
like($peeking, qr/seen open kind/, 'a function in WHERE sees the rows of its caller');
unlike($peeking, qr/secret/, 'and no other');
is(sql(q{SET ROLE regress_user; SELECT count(*) FROM pg_stats WHERE schemaname = 'ratchet'}), '0', 'nor do statistics tell');
unlike(sql_error($node, 'hostile', q{SET ROLE regress_user; SELECT 1 / length(kind) / 0 FROM ratchet.jobs}), qr/secret/, 'nor errors');

# A SECURITY DEFINER wrapper counts as its owner, both ways.
sql(q{CREATE FUNCTION public.for_everybody() RETURNS uuid SECURITY DEFINER LANGUAGE sql AS $$ SELECT ratchet.enqueue('wrapped', queue => 'closed') $$;
    CREATE ROLE regress_outsider});
is(sql(q{SET ROLE regress_outsider; SELECT public.for_everybody() IS NOT NULL}), 't', 'a wrapper of a superuser lends its right');
is(sql(q{SELECT enqueued_by FROM ratchet.jobs WHERE kind = 'wrapped'}), 'postgres', 'and the job is its owner\'s');
sql_fails($node, 'hostile', q{GRANT CREATE ON SCHEMA public TO regress_dba; SET ROLE regress_dba;
    CREATE FUNCTION public.trap() RETURNS uuid SECURITY DEFINER LANGUAGE sql AS $$ SELECT ratchet.enqueue('k', queue => 'closed') $$;
    RESET ROLE; SELECT public.trap()}, '42501', 'a superuser who calls a wrapper of another lends none');

# Locks of others: duties that change tables never queue up behind a reader, with everybody else behind them.
sql(q{SELECT ratchet.configure_queue('direct', archive_after => '0'), ratchet.enqueue('k', queue => 'direct');
    DELETE FROM ratchet.job_archive});
sql(q{SELECT ratchet.complete(id, token) FROM ratchet.claim('direct', 'w')});
my $reader = $node->background_psql('hostile');
sql(q{INSERT INTO ratchet.job_archive (id, queue, kind, payload, state, priority, scheduled_at, created_at, attempt, max_attempts, crashes, version, enqueued_by, finished_at, archived_at)
    SELECT gen_random_uuid(), 'direct', 'older', '{}', 'succeeded', 0, at, at, 1, 3, 0, 3, 'postgres', at, at FROM (SELECT now() - interval '30 days' AS at) x});
$reader->query_safe('BEGIN; SELECT count(*) FROM ratchet.job_archive');
is(sql(q{SET lock_timeout = '2 s'; SELECT ratchet.maintenance_step('partitions')}), '0', 'a reader of the archive: partitions come later');
is(sql(q{SELECT count(*) FROM ratchet.job_archive_default}), '1', 'the row stays where it is');
is(sql(q{SET lock_timeout = '2 s'; SET ratchet.archive_keep = '1 s'; SELECT ratchet.maintenance_step('purge') < 2}), 't', 'nor is one dropped under the reader');
$reader->query_safe('COMMIT');
sql(q{INSERT INTO ratchet.job_archive (id, queue, kind, payload, state, priority, scheduled_at, created_at, attempt, max_attempts, crashes, version, enqueued_by, finished_at, archived_at)
    SELECT gen_random_uuid(), 'direct', 'older', '{}', 'succeeded', 0, at, at, 1, 3, 0, 3, 'postgres', at, at FROM (SELECT now() - interval '20 days' AS at) x});
is(sql(q{SELECT ratchet.maintenance_step('partitions') > 0}), 't', 'when the reader is gone the partition is made');

# The guard likewise.
sql(q{ALTER TABLE ratchet.job ENABLE TRIGGER ALL});
$reader->query_safe('BEGIN; LOCK TABLE ratchet.job IN ROW EXCLUSIVE MODE');
is(sql(q{SET lock_timeout = '2 s'; SELECT ratchet.maintenance_step('guard')}), '0', 'a writer of jobs: the guard is repaired later');
$reader->query_safe('COMMIT');
is(sql(q{SELECT ratchet.maintenance_step('guard')}), '4', 'when it is gone, at once');
# A lock on the job table delays a claim; lock_timeout applies, and the claim leaves nothing behind.
$reader->query_safe('BEGIN; LOCK TABLE ratchet.job IN ACCESS EXCLUSIVE MODE');
sql_fails($node, 'hostile', q{SET lock_timeout = '100 ms'; SELECT * FROM ratchet.claim('open', 'w')}, '55P03', 'lock_timeout ends a claim that waits for the table');
$reader->query_safe('ROLLBACK');
is(sql(q{SELECT kind FROM ratchet.claim('open', 'w')}), 'open kind', 'and the job is handed out afterwards');
# Rows locked by somebody else are passed by.
sql(q{SELECT ratchet.enqueue('r' || n, queue => 'rows') FROM generate_series(1, 2) n});
$reader->query_safe(q{BEGIN; SELECT 1 FROM ratchet.job WHERE kind = 'r1' FOR UPDATE});
is(sql(q{SET lock_timeout = '2 s'; SELECT kind FROM ratchet.claim('rows', 'w', batch => 5)}), 'r2', 'a locked row is passed by');
$reader->query_safe('ROLLBACK');
$reader->quit;

done_testing();
