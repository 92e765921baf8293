# Signals, crashes, shutdown, standby and promotion, too few worker slots, pg_upgrade: the processes come back by themselves,
# and do not run where they should not.
use strict;
use warnings FATAL => 'all';

use RatchetNode;
use Test::More;
use Time::HiRes qw(time);

my $node = ratchet_node('processes', preload => 1, streaming => 1, conf => 'max_worker_processes = 16');
my $launcher = "backend_type = 'ratchet launcher'";
my $worker   = "backend_type = 'ratchet worker'";
my $settled  = "SELECT passes > 0 AND state = 'idle' FROM ratchet.worker_stat WHERE database = current_database()";

sub pid_of { return $node->safe_psql('postgres', "SELECT pid FROM pg_stat_activity WHERE $_[0]") }

sub works
{
    my ($name) = @_;
    my $id = $node->safe_psql('postgres', q{SELECT ratchet.enqueue('x', expires_in => '1 millisecond')});
    ok(poll_until($node, "SELECT state::text FROM ratchet.jobs WHERE id = '$id'", 'expired'), $name);
}

ok(poll_until($node, $settled), 'worker runs');

# Cancel does not even end them.
for my $which ($launcher, $worker)
{
    my $pid = pid_of($which);
    my $position = log_position($node);
    $node->safe_psql('postgres', "SELECT pg_cancel_backend($pid)");
    $node->wait_for_log(qr/\[$pid\].*canceling statement/, $position);
    works("works after pg_cancel_backend where $which");
    is(pid_of($which), $pid, 'the process is the same');
}

# Terminate: back again, and nobody else is disturbed.
my $session = $node->background_psql('postgres');
my $began = time;
my $pid = kill_backend($node, 'TERM', $worker);
ok(poll_until($node, "SELECT count(*) FROM pg_stat_activity WHERE $worker AND pid <> $pid", '1'), 'worker comes back after SIGTERM');
cmp_ok(time - $began, '<', 4, 'soon');
works('and works');
my $workers_pid = pid_of($worker);
$pid = kill_backend($node, 'TERM', $launcher);
ok(poll_until($node, "SELECT count(*) FROM pg_stat_activity WHERE $launcher AND pid <> $pid", '1'), 'launcher comes back after SIGTERM');
is(pid_of($worker), $workers_pid, 'its worker has not noticed');
ok(poll_until($node, "SELECT last_pass > since FROM ratchet.worker_stat WHERE process = 'launcher'"), 'launcher has looked around');
is($node->safe_psql('postgres', "SELECT count(*) FROM pg_stat_activity WHERE $worker"), '1', 'and started no second worker');
is($session->query_safe('SELECT 1'), '1', 'no session was disturbed');
$session->quit;

# kill -9 restarts the server, and everything comes back; the job of a lost worker too.
for my $which ($worker, $launcher)
{
    my $id = $node->safe_psql('postgres', q{SELECT ratchet.enqueue('job', queue => 'k')});
    $node->safe_psql('postgres', q{SELECT FROM ratchet.claim('k', 'w', lease => '1 second')});
    my $start = $node->safe_psql('postgres', 'SELECT pid FROM pg_stat_activity WHERE backend_type = \'checkpointer\'');
    kill_backend($node, 'KILL', $which);
    ok(poll_until($node, "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'checkpointer' AND pid <> $start", '1'), "kill -9 where $which: server restarted");
    ok(poll_until($node, "SELECT state::text FROM ratchet.jobs WHERE id = '$id'", 'pending'), 'the orphan is recovered');
    $node->safe_psql('postgres', "SELECT ratchet.cancel('$id')");
    works('worker is back');
}

# A standby has none; shutdown is quick either way; promotion starts them.
$node->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'base', has_streaming => 1);
$standby->start;
$node->wait_for_catchup($standby);
is($standby->safe_psql('postgres', "SELECT count(*) FROM pg_stat_activity WHERE backend_type LIKE 'ratchet%'"), '0', 'nothing runs on a standby');
is($standby->safe_psql('postgres', 'SELECT state FROM ratchet.worker_stat'), 'stopped', 'and worker_stat says so');
for my $mode ('smart', 'fast')
{
    ok(poll_until($node, $settled), "before a $mode shutdown");
    $began = time;
    $node->stop($mode);
    cmp_ok(time - $began, '<', 5, "$mode shutdown is quick");
    $node->start;
}
$node->safe_psql('postgres', q{SELECT ratchet.enqueue('promoted', queue => 'p'); SELECT FROM ratchet.claim('p', 'w', lease => '1 second')});
$node->wait_for_catchup($standby);
$node->stop('fast');
$standby->promote;
ok(poll_until($standby, "SELECT count(*) FROM pg_stat_activity WHERE backend_type LIKE 'ratchet%'", '2'), 'promotion starts them');
ok(poll_until($standby, q{SELECT state::text FROM ratchet.jobs WHERE kind = 'promoted'}, 'pending'), 'and they do what is due');
$standby->stop('fast');
$node->start;

# More databases than worker slots: each has its turn, and the log says it once.
$node->safe_psql('postgres', "CREATE DATABASE $_ TEMPLATE postgres") for 'd1', 'd2';
$node->append_conf('postgresql.conf', 'max_worker_processes = 4');    # launcher, logical replication launcher, two workers
$node->restart;
ok(poll_until($node, "SELECT state FROM ratchet.worker_stat WHERE process = 'launcher'", 'out of workers'), 'worker_stat says that workers are too few');
$node->safe_psql($_, q{SELECT ratchet.enqueue('turn', expires_in => '1 millisecond')}) for 'postgres', 'd1', 'd2';
ok(poll_until($node, q{SELECT state::text FROM ratchet.jobs WHERE kind = 'turn'}, 'expired', $_), "$_ is served all the same")
  for 'postgres', 'd1', 'd2';
my $log = PostgreSQL::Test::Utils::slurp_file($node->logfile);
is(scalar(() = $log =~ /no room for another background worker/g), 1, 'the log says it once');

# More databases than slots in shared memory.
$node->append_conf('postgresql.conf', "max_worker_processes = 16\nratchet.max_databases = 2");
$node->restart;
ok(poll_until($node, "SELECT state FROM ratchet.worker_stat WHERE process = 'launcher'", 'out of slots'), 'worker_stat says that slots are too few');
is($node->safe_psql('d2', 'CALL ratchet.run_maintenance(); SELECT 1'), '1', 'a database without a worker still works');
$node->stop('fast');

# pg_upgrade: a server started with -b has no ratchet process and no hooks.
my $bin = $node->config_data('--bindir');
my $upgrade_log = $node->data_dir . '/upgrade.log';
PostgreSQL::Test::Utils::system_or_bail('pg_ctl', '-D', $node->data_dir, '-w', '-l', $upgrade_log, '-o', '-b', 'start');
is($node->safe_psql('postgres', "SELECT count(*) FROM pg_stat_activity WHERE backend_type LIKE 'ratchet%'"), '0', 'nothing starts under pg_upgrade');
PostgreSQL::Test::Utils::system_or_bail('pg_ctl', '-D', $node->data_dir, '-w', '-m', 'fast', 'stop');

done_testing();
