# Waiting through pgbouncer in transaction mode, where LISTEN does not work: a waiting CALL keeps its server connection, is
# woken by commits that come through other ones, and the claim that follows may use any of them.

use strict;
use warnings FATAL => 'all';

use IPC::Run;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RatchetNode;
use Test::More;
use Time::HiRes qw(time usleep);

my $pgbouncer = (grep { -x } map { "$_/pgbouncer" } split(/:/, $ENV{PATH}), '/usr/sbin')[0];
plan skip_all => 'no pgbouncer here' unless defined $pgbouncer;

my $node = ratchet_node('main', preload => 1);
my $dir  = PostgreSQL::Test::Utils::tempdir_short();
my $port = PostgreSQL::Test::Cluster::get_free_port();
my $user = $node->safe_psql('postgres', 'SELECT current_user');

append_to_file("$dir/users", "\"$user\" \"\"\n");
append_to_file("$dir/pgbouncer.ini", <<"EOC");
[databases]
postgres = host=${\$node->host} port=${\$node->port} dbname=postgres user=$user
[pgbouncer]
listen_addr =
unix_socket_dir = $dir
listen_port = $port
auth_type = any
auth_file = $dir/users
pool_mode = transaction
default_pool_size = 5
logfile = $dir/log
EOC
my $bouncer = IPC::Run::start([ $pgbouncer, "$dir/pgbouncer.ini" ], '<', \undef, '>', \my $bouncer_out, '2>', \my $bouncer_err);
my $pooled  = "host=$dir port=$port dbname=postgres user=$user";

sub through_pooler
{
    my ($sql) = @_;
    my ($out, $err);
    IPC::Run::run([ 'psql', '-XAtq', '-d', $pooled, map { ('-c', $_) } ref $sql ? @$sql : $sql ], '<', \undef, '>', \$out, '2>', \$err);
    chomp($out);
    return $out ne '' ? $out : $err;
}

my $start = time;
usleep(50_000) while through_pooler('SELECT 1') ne '1' && time - $start < 20;
is(through_pooler('SELECT 1'), '1', 'pgbouncer is there') or BAIL_OUT($bouncer_err);

my $waiting = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'CALL ratchet.wait%' AND wait_event_type = 'Extension'";
my @clients;
for my $n (1 .. 2)
{
    my %client = (out => '', err => '');
    $client{run} = IPC::Run::start(
        [ 'psql', '-XAtq', '-d', $pooled, '-c', "CALL ratchet.wait('{pooled}', '60 s')", '-c', "SELECT kind FROM ratchet.claim('pooled', 'w$n')" ],
        '<', \undef, '>', \$client{out}, '2>', \$client{err});
    push @clients, \%client;
    ok(poll_until($node, $waiting, $n), "client $n waits");
}

for my $client (@clients)
{
    $start = time;
    like(through_pooler("SELECT ratchet.enqueue('k', queue => 'pooled')"), qr/^[0-9a-f-]{36}$/, 'a job is enqueued through the pooler');
    $client->{run}->finish;
    is($client->{out}, "t\nk\n", 'a waiter is woken and claims');
    cmp_ok(time - $start, '<', 10, 'at once');
}

# A client that goes away takes its server connection along, and no wake-up with it.
{
    my ($out, $err) = ('', '');
    my $lost = IPC::Run::start([ 'psql', '-XAtq', '-d', $pooled, '-c', "CALL ratchet.wait('{pooled}', '60 s')" ], '<', \undef, '>', \$out, '2>', \$err);
    ok(poll_until($node, $waiting, 1), 'a client waits');
    $lost->kill_kill;
    ok(poll_until($node, $waiting, 0), 'when it is gone nobody waits');
    is($node->safe_psql('postgres', 'SELECT waiting FROM ratchet.waiter_stat'), 0, 'and no slot is used');
}
is(through_pooler([ 'BEGIN', "CALL ratchet.wait('{pooled}', '1 s')" ]) =~ /autocommit/ ? 1 : 0, 1, 'in a transaction block the hint says what to do');

$bouncer->signal('INT');
$bouncer->finish;
$node->stop;
done_testing();
