# pg_upgrade: a cluster with jobs goes to a new one (of the same version here), with the library preloaded, and works there.

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RatchetNode;
use Test::More;

my $old = ratchet_node('old', preload => 1);
my $new = ratchet_node('new', preload => 1, start => 0);

$old->safe_psql('postgres', q{
    CREATE ROLE regress_producer;
    SELECT ratchet.grant_access('regress_producer', 'enqueue', 'q');
    SELECT ratchet.configure_queue('q', priority => 4);
    SELECT ratchet.configure_queue('direct', archive_after => '0');
    SELECT ratchet.enqueue('pending', queue => 'q', idempotency_key => 'i', business_key => 'b', tags => '{x}');
    SELECT ratchet.enqueue('archived', queue => 'direct');
    SELECT ratchet.complete(id, token) FROM ratchet.claim('direct', 'w');
    SELECT ratchet.maintenance_step('partitions');
    SELECT ratchet.enqueue('failed', queue => 'work');
    SELECT ratchet.fail(id, token, 'broken', false) FROM ratchet.claim('work', 'w');
    SELECT ratchet.enqueue('running', queue => 'work')});
my ($id, $token) = split /\|/, $old->safe_psql('postgres', q{SELECT id, token FROM ratchet.claim('work', 'w', lease => '1 hour')});

my @queries = (
    'SELECT j FROM ratchet.job j ORDER BY id', 'SELECT tableoid::regclass, a FROM ratchet.job_archive a ORDER BY id', 'SELECT e FROM ratchet.job_error e ORDER BY e',
    'SELECT q FROM ratchet.queue q ORDER BY q', 'SELECT a FROM ratchet.access a ORDER BY a', 'SELECT k FROM ratchet.idempotency_key k ORDER BY k',
    'SELECT k FROM ratchet.business_key k ORDER BY k',
    q{SELECT tgrelid::regclass, tgname, tgenabled FROM pg_trigger JOIN pg_class c ON c.oid = tgrelid WHERE relnamespace = 'ratchet'::regnamespace ORDER BY 1, 2},
    q{SELECT oid::regprocedure, proacl FROM pg_proc WHERE pronamespace = 'ratchet'::regnamespace ORDER BY oid::regprocedure::text},
    q{SELECT count(*) FROM pg_depend WHERE refclassid = 'pg_extension'::regclass AND deptype = 'e' AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'ratchet')},
    q{SELECT extversion, extconfig::regclass[] FROM pg_extension WHERE extname = 'ratchet'});
my @before = map { $old->safe_psql('postgres', $_) } @queries;
$old->stop;

my $bindir = $old->config_data('--bindir');
chomp $bindir;
{
    # It writes beside where it is called.
    local $ENV{TMPDIR} = PostgreSQL::Test::Utils::tempdir();
    chdir $ENV{TMPDIR} or die "cannot change to $ENV{TMPDIR}: $!";
    command_ok(
        [   'pg_upgrade', '--no-sync', '-b', $bindir, '-B', $bindir, '-d', $old->data_dir, '-D', $new->data_dir,
            '-p', $old->port, '-P', $new->port, '-s', $new->host ],
        'pg_upgrade');
}
$new->start;

for my $i (0 .. $#queries)
{
    isnt($before[$i], '', "something to see for: $queries[$i]");
    is($new->safe_psql('postgres', $queries[$i]), $before[$i], "the same after pg_upgrade: $queries[$i]");
}
is($new->safe_psql('postgres', "SELECT ratchet.complete('$id', '$token', strict => true)"), 't', 'a token from before completes its job');
sql_fails($new, 'postgres', q{SELECT ratchet.enqueue('second', queue => 'q', business_key => 'b')}, 'RT002', 'a business key is held');
is($new->safe_psql('postgres', q{SELECT ratchet.enqueue('pending', queue => 'q', idempotency_key => 'i') = id FROM ratchet.jobs WHERE kind = 'pending'}), 't',
    'an idempotency key stands for its job');
is($new->safe_psql('postgres', q{SET ROLE regress_producer; SELECT ratchet.enqueue('k', queue => 'q') IS NOT NULL}), 't', 'rights work');
is($new->safe_psql('postgres', q{SELECT kind FROM ratchet.claim('q', 'w', batch => 5)}), "pending\nk", 'jobs are handed out');
$new->safe_psql('postgres', 'CALL ratchet.run_maintenance()');
sql_fails($new, 'postgres', q{UPDATE ratchet.job SET state = 'pending' WHERE state = 'succeeded'}, 'RT001', 'the guard is on');

done_testing();
