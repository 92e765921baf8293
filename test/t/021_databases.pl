# Our connection is in nobody's way: commands that want a database for themselves work while a worker is connected to it, and
# those that may not be given stop nobody.
use strict;
use warnings FATAL => 'all';

use RatchetNode;
use Test::More;
use Time::HiRes qw(time);

my $node = ratchet_node('databases', preload => 1, conf => 'max_worker_processes = 16');
my $settled = "SELECT passes > 0 AND state = 'idle' FROM ratchet.worker_stat WHERE database = current_database()";

sub pid_in { return $node->safe_psql('postgres', "SELECT pid FROM ratchet.worker_stat WHERE database = '$_[0]'") }

sub in_time
{
    my ($command, $name) = @_;
    my $began = time;
    my ($rc, $out, $err) = $node->psql('postgres', $command);
    is($err, '', $name);
    cmp_ok(time - $began, '<', 3, '... at once');
}

sub lives { ok(poll_until($node, $settled, 't', $_[0]), "database $_[0] has a worker") }

sub works
{
    my ($db) = @_;
    my $id = $node->safe_psql($db, q{SELECT ratchet.enqueue('x', expires_in => '1 millisecond')});
    ok(poll_until($node, "SELECT state::text FROM ratchet.jobs WHERE id = '$id'", 'expired', $db), "... that works");
}

$node->safe_psql('postgres', 'CREATE DATABASE a');
$node->safe_psql('a', 'CREATE EXTENSION ratchet');
lives('a');

# Without permission nothing happens to it.
$node->safe_psql('postgres', 'CREATE ROLE mallory LOGIN CREATEDB');
my $pid = pid_in('a');
for my $command ('DROP DATABASE a', 'ALTER DATABASE a RENAME TO z', 'ALTER DATABASE a SET TABLESPACE pg_default', 'CREATE DATABASE z TEMPLATE a')
{
    my ($rc, $out, $err) = $node->psql('postgres', "SET SESSION AUTHORIZATION mallory; $command");
    like($err, qr/permission denied|must be owner/, "refused: $command");
}
$node->safe_psql('a', q{SELECT ratchet.enqueue('look', expires_in => '2500 milliseconds')});
ok(poll_until($node, q{SELECT state::text FROM ratchet.jobs WHERE kind = 'look'}, 'expired', 'a'), 'long after that');
is(pid_in('a'), $pid, 'the worker is the same');

in_time('ALTER DATABASE a RENAME TO b', 'RENAME');
lives('b');
in_time('CREATE DATABASE c TEMPLATE b', 'TEMPLATE');
lives('b');
lives('c');
works('c');
my $folder = PostgreSQL::Test::Utils::tempdir_short();
$node->safe_psql('postgres', "CREATE TABLESPACE elsewhere LOCATION '$folder'");
in_time('ALTER DATABASE c SET TABLESPACE elsewhere', 'SET TABLESPACE');
lives('c');
in_time('ALTER DATABASE c SET TABLESPACE pg_default', 'and back');
$node->safe_psql('postgres', 'DROP TABLESPACE elsewhere');
lives('c');
works('c');
in_time('DROP DATABASE c', 'DROP DATABASE');
in_time('DROP DATABASE b WITH (FORCE)', 'DROP DATABASE WITH (FORCE)');
ok(poll_until($node, 'SELECT count(*) FROM ratchet.worker_stat', '2'), 'their workers are gone and forgotten');

# Databases that are not to be connected to.
$node->safe_psql('postgres', 'CREATE DATABASE d');
$node->safe_psql('d', 'CREATE EXTENSION ratchet');
lives('d');
my $gone = "SELECT count(*) FROM ratchet.worker_stat WHERE database = 'd'";
$node->safe_psql('postgres', 'ALTER DATABASE d ALLOW_CONNECTIONS false');
ok(poll_until($node, $gone, '0'), 'no worker where no connections are allowed');
$node->safe_psql('postgres', 'ALTER DATABASE d ALLOW_CONNECTIONS true');
lives('d');
$node->safe_psql('postgres', 'ALTER DATABASE d IS_TEMPLATE true');
ok(poll_until($node, $gone, '0'), 'nor in a template');
$node->safe_psql('postgres', 'ALTER DATABASE d IS_TEMPLATE false');
lives('d');
$node->safe_psql('postgres', 'ALTER DATABASE d CONNECTION LIMIT 0');
works('d');

# ratchet.databases
$node->safe_psql('postgres', q{ALTER SYSTEM SET ratchet.databases = 'postgres, "None"'});
$node->reload;
ok(poll_until($node, $gone, '0'), 'ratchet.databases narrows');
lives('postgres');
$node->safe_psql('postgres', 'ALTER SYSTEM RESET ratchet.databases');
$node->reload;
lives('d');
isnt($node->psql('postgres', q{ALTER SYSTEM SET ratchet.databases = 'a,,b'}), 0, 'a list that is none is refused');

# Hostile settings, and what a non-superuser owner can do.
$node->safe_psql('postgres', q{
    CREATE ROLE owner LOGIN; ALTER DATABASE d OWNER TO owner; ALTER DATABASE d CONNECTION LIMIT -1; GRANT CREATE ON DATABASE d TO owner;
    SET SESSION AUTHORIZATION owner;
    ALTER DATABASE d SET search_path = mal, pg_catalog;
    ALTER DATABASE d SET role = 'owner';
    ALTER DATABASE d SET statement_timeout = '1ms';
    ALTER DATABASE d SET lock_timeout = '1ms';
    ALTER DATABASE d SET idle_in_transaction_session_timeout = '1ms';
    ALTER DATABASE d SET idle_session_timeout = '1ms';
    ALTER DATABASE d SET default_transaction_read_only = on;
    ALTER DATABASE d SET default_transaction_isolation = 'serializable';
    ALTER DATABASE d SET default_transaction_deferrable = on;
    ALTER DATABASE d SET exit_on_error = on;
    ALTER DATABASE d SET enable_indexscan = off;
    ALTER DATABASE d SET DateStyle = 'SQL, DMY';
    ALTER DATABASE d SET row_security = off;
    ALTER DATABASE d SET client_encoding = 'LATIN1';});
local $ENV{PGOPTIONS} = '-c statement_timeout=0 -c role=none -c idle_session_timeout=0 -c default_transaction_read_only=off'
  . ' -c default_transaction_isolation=read\ committed -c search_path=public -c default_transaction_deferrable=off';
$node->safe_psql('d', q{
    CREATE SCHEMA mal; CREATE TABLE mal.seen (who text); GRANT INSERT ON mal.seen TO PUBLIC; GRANT USAGE ON SCHEMA mal TO PUBLIC;
    CREATE FUNCTION mal.eq(ratchet.job_state, ratchet.job_state) RETURNS bool LANGUAGE plpgsql
        AS 'BEGIN INSERT INTO mal.seen VALUES (current_user); RETURN true; END';
    CREATE OPERATOR mal.= (leftarg = ratchet.job_state, rightarg = ratchet.job_state, function = mal.eq);
    CREATE FUNCTION mal.now() RETURNS timestamptz LANGUAGE plpgsql
        AS 'BEGIN INSERT INTO mal.seen VALUES (current_user); RETURN pg_catalog.now(); END';});
kill_backend($node, 'TERM', "backend_type = 'ratchet worker' AND datname = 'd'");
ok(poll_until($node, "SELECT state = 'idle' AND passes > 0 AND pid IS NOT NULL FROM ratchet.worker_stat WHERE database = 'd'"),
    'the worker comes back under hostile settings');
$node->safe_psql('d', q{
    SELECT ratchet.configure_queue('h', archive_after => '1 second', max_attempts => 1);
    SELECT ratchet.enqueue('ttl', expires_in => '1 millisecond');
    SELECT ratchet.enqueue('done', queue => 'h');
    SELECT ratchet.complete(id, token) FROM ratchet.claim('h', 'w');
    SELECT ratchet.enqueue('lost', queue => 'l');
    SELECT FROM ratchet.claim('l', 'w', lease => '1 second');});
ok(poll_until($node, q{SELECT state::text FROM ratchet.jobs WHERE kind = 'ttl'}, 'expired', 'd'), 'expires jobs');
ok(poll_until($node, q{SELECT archived FROM ratchet.jobs WHERE kind = 'done'}, 't', 'd'), 'archives them');
ok(poll_until($node, q{SELECT state::text FROM ratchet.jobs WHERE kind = 'lost'}, 'pending', 'd'), 'recovers them');
ok(poll_until($node, q{SELECT count(*) FROM pg_inherits WHERE inhparent = 'ratchet.job_archive'::regclass}, '2', 'd'), 'makes partitions');
is($node->safe_psql('d', 'SELECT count(*) FROM mal.seen'), '0', 'and runs no code of others');
is($node->safe_psql('d', "SELECT coalesce(last_error, '') FROM ratchet.worker_stat WHERE database = 'd'"), '', 'without a single error');

$node->stop('fast');
done_testing();
