# Workers come with the extension and go with it; every duty happens by itself.
use strict;
use warnings FATAL => 'all';

use RatchetNode;
use Test::More;

my $node = ratchet_node('workers', preload => 1, extension => 0, conf => "max_worker_processes = 16\nautovacuum = off");

sub workers { return "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'ratchet worker' AND datname = '$_[0]'" }

# The database has its worker, and it has looked around at least once.
my $settled = "SELECT passes > 0 AND state = 'idle' FROM ratchet.worker_stat WHERE database = current_database()";

sub figure { return "SELECT changed->>'$_[0]' FROM ratchet.worker_stat WHERE database = current_database()" }

# Without the extension there is only the launcher.
ok(poll_until($node, "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'ratchet launcher'", '1'), 'launcher runs');
ok(poll_until($node, workers('postgres'), '0'), 'a database without the extension has no worker');

# What is rolled back has never been.
$node->safe_psql('postgres', 'BEGIN; CREATE EXTENSION ratchet; ROLLBACK');
$node->safe_psql('postgres', 'BEGIN; SAVEPOINT s; CREATE EXTENSION ratchet; ROLLBACK TO s; COMMIT');
$node->safe_psql('postgres', 'CREATE DATABASE other');
$node->safe_psql('other',    'CREATE EXTENSION ratchet');
ok(poll_until($node, $settled, 't', 'other'), 'CREATE EXTENSION brings a worker');
is($node->safe_psql('postgres', workers('postgres')), '0', 'one that is rolled back does not');

is($node->safe_psql('other', q{
    SELECT application_name, state, wait_event_type IS NOT NULL, xact_start IS NULL, backend_xmin IS NULL, backend_xid IS NULL
      FROM pg_stat_activity WHERE backend_type = 'ratchet worker' AND datname = 'other'}),
    'ratchet worker|idle|t|t|t|t', 'pg_stat_activity shows it idle, with no transaction and no snapshot');
is($node->safe_psql('other', q{
    SELECT string_agg(process || ' ' || coalesce(database, '-') || ' ' || (pid IS NOT NULL)::text, ',' ORDER BY process)
      FROM ratchet.worker_stat WHERE database IS NULL OR database = 'other'}),
    'launcher - true,worker other true', 'worker_stat shows both');

# Prepared, a CREATE EXTENSION counts when it is committed.
$node->safe_psql('postgres', q{BEGIN; CREATE EXTENSION ratchet; PREPARE TRANSACTION 'e'});
is($node->safe_psql('postgres', workers('postgres')), '0', 'a prepared CREATE EXTENSION brings none');
$node->safe_psql('postgres', q{COMMIT PREPARED 'e'});
ok(poll_until($node, $settled), 'COMMIT PREPARED does');

# A worker dies, its job is claimable again: lease + 1 s.
$node->safe_psql('postgres', q{SELECT ratchet.enqueue('orphan')});
is($node->safe_psql('postgres', q{SELECT count(*) FROM ratchet.claim('default', 'w', lease => '1 second')}), '1', 'claimed');
ok(poll_until($node, q{SELECT state::text FROM ratchet.jobs WHERE kind = 'orphan'}, 'pending'), 'an orphan comes back by itself');
is($node->safe_psql('postgres', q{
    SELECT count(*), bool_and(at - picked_at BETWEEN '1 second' AND '2 seconds')
      FROM ratchet.job_errors e JOIN ratchet.jobs j ON j.id = e.job_id WHERE kind = 'orphan'}),
    '1|t', 'within lease + 1 s');
ok(poll_until($node, figure('recover'), '1'), 'worker_stat counts it');

# Timeout, TTL, archival: on time, and on time again when the time is brought forward.
$node->safe_psql('postgres', q{
    SELECT ratchet.configure_queue('t', timeout => '1 second', max_attempts => 1);
    SELECT ratchet.enqueue('slow', queue => 't');
    SELECT FROM ratchet.claim('t', 'w');
    SELECT ratchet.enqueue('later', queue => 'ttl', expires_in => '1 hour');
    SELECT ratchet.enqueue('soon', queue => 'ttl', expires_in => '1 second');});
ok(poll_until($node, q{SELECT state::text FROM ratchet.jobs WHERE kind = 'slow'}, 'failed'), 'timeout happens by itself');
ok(poll_until($node, q{SELECT state::text FROM ratchet.jobs WHERE kind = 'soon'}, 'expired'), 'so does expiry');
is($node->safe_psql('postgres', q{SELECT bool_and(finished_at - scheduled_at < '2.5 seconds') FROM ratchet.jobs WHERE kind IN ('slow', 'soon')}),
    't', 'both on time');
is($node->safe_psql('postgres', q{SELECT state FROM ratchet.jobs WHERE kind = 'later'}), 'pending', 'and no other job');

$node->safe_psql('postgres', q{
    SELECT ratchet.configure_queue('a', archive_after => '1 second');
    SELECT ratchet.enqueue('old', queue => 'a');
    SELECT ratchet.complete(id, token) FROM ratchet.claim('a', 'w');});
ok(poll_until($node, q{SELECT archived FROM ratchet.jobs WHERE kind = 'old'}), 'archival too');
ok(poll_until($node, q{SELECT count(*) FROM pg_inherits WHERE inhparent = 'ratchet.job_archive'::regclass}, '2'),
    'and its partition is made');

# A changed setting counts for the jobs that are there.
$node->safe_psql('postgres', q{SELECT ratchet.complete(id, token) FROM ratchet.claim('default', 'w')});
is($node->safe_psql('postgres', q{SELECT archived FROM ratchet.jobs WHERE kind = 'orphan'}), 'f', 'an hour to go');
$node->safe_psql('postgres', q{SELECT ratchet.configure_queue('default', archive_after => '1 second')});
ok(poll_until($node, q{SELECT archived FROM ratchet.jobs WHERE kind = 'orphan'}), 'until the queue says otherwise');

# A full batch is repeated at once: 5,000 jobs expire in one go.
$node->safe_psql('postgres', q{
    SELECT ratchet.enqueue_many('many', array_agg('{}'::jsonb), queue => 'm', expires_in => '1 second') FROM generate_series(1, 5000)});
ok(poll_until($node, q{SELECT count(*) FROM ratchet.job WHERE kind = 'many' AND state = 'expired'}, '5000'), 'full batches');
is($node->safe_psql('postgres', q{SELECT max(finished_at) - min(finished_at) < '2 seconds' FROM ratchet.job WHERE kind = 'many'}),
    't', 'follow each other at once');

# DROP EXTENSION ends it, by whichever way and only when committed.
my $pid = $node->safe_psql('postgres', q{SELECT pid FROM ratchet.worker_stat WHERE database = 'postgres'});
$node->safe_psql('postgres', 'BEGIN; DROP EXTENSION ratchet CASCADE; ROLLBACK');
$node->safe_psql('postgres', q{SELECT ratchet.enqueue('after', queue => 'ttl2', expires_in => '1 second')});
ok(poll_until($node, q{SELECT state::text FROM ratchet.jobs WHERE kind = 'after'}, 'expired'), 'a rolled-back DROP EXTENSION');
is($node->safe_psql('postgres', q{SELECT pid FROM ratchet.worker_stat WHERE database = 'postgres'}), $pid, 'does not even restart it');
$node->safe_psql('postgres', 'DROP EXTENSION ratchet CASCADE');
ok(poll_until($node, workers('postgres'), '0'), 'DROP EXTENSION ends the worker');
$node->safe_psql('other', 'DROP EXTENSION ratchet; CREATE ROLE owner SUPERUSER; SET ROLE owner; CREATE EXTENSION ratchet');
ok(poll_until($node, $settled, 't', 'other'), 'dropped and made again');
$node->safe_psql('other', 'DROP OWNED BY owner CASCADE');
ok(poll_until($node, workers('other'), '0'), 'DROP OWNED ends it too');
$node->safe_psql('postgres', 'CREATE EXTENSION ratchet');
ok(poll_until($node, $settled), 'and it comes again');

# Locks of users delay a duty and stop none for good.
my $holder = $node->background_psql('postgres');
$holder->query_safe('BEGIN; LOCK TABLE ratchet.job IN ACCESS EXCLUSIVE MODE');
ok(poll_until($node, "SELECT last_error LIKE '%lock timeout%' FROM ratchet.worker_stat WHERE database = 'postgres'"),
    'a locked table is an error that worker_stat shows');
$holder->query_safe('COMMIT');
$holder->quit;
$node->safe_psql('postgres', q{SELECT ratchet.enqueue('unlocked', expires_in => '1 second')});
ok(poll_until($node, q{SELECT state::text FROM ratchet.jobs WHERE kind = 'unlocked'}, 'expired'), 'the duties go on afterwards');

# Idle: no WAL, hardly a pass.
ok(poll_until($node, "SELECT state = 'idle' AND polling = 'normal' FROM ratchet.worker_stat WHERE database = 'postgres'"), 'calms down');
# The first looks after a change may still set hint bits, which costs WAL where there are checksums.
my ($lsn, $passes, $at, $written);
for (1 .. 5)
{
    ($lsn, $passes, $at) = split /\|/, $node->safe_psql('postgres',
        "SELECT pg_current_wal_insert_lsn(), passes, extract(epoch FROM clock_timestamp()) FROM ratchet.worker_stat WHERE database = 'postgres'");
    ok(poll_until($node, "SELECT passes >= $passes + 2 FROM ratchet.worker_stat WHERE database = 'postgres'"), 'polls while idle');
    $written = $node->safe_psql('postgres', "SELECT pg_current_wal_insert_lsn() - '$lsn'");
    last if $written eq '0';
}
is($written, '0', 'an idle worker writes no WAL');
is($node->safe_psql('postgres',
    "SELECT (passes - $passes) / (extract(epoch FROM clock_timestamp()) - $at) < 1 FROM ratchet.worker_stat WHERE database = 'postgres'"),
    't', 'and wakes up less than once a second');

# Rights: observe sees it, without it there is nothing to see.
$node->safe_psql('postgres', q{CREATE ROLE watcher; CREATE ROLE nobody; SELECT ratchet.grant_access('watcher', 'observe')});
is($node->safe_psql('postgres', q{SET ROLE watcher; SELECT count(*) FROM ratchet.worker_stat}), '2', 'observe shows the own database');
isnt($node->psql('postgres', q{SET ROLE nobody; SELECT count(*) FROM ratchet.worker_stat}), 0, 'others see nothing');

$node->stop('fast');
done_testing();
