# Waiting for work: woken by the commit that brings it, as many as it needs, none by a rollback, and no wake-up lost. The
# net below the wake-ups is a look every 30 seconds; whatever happens within 10 did not come from there.

use strict;
use warnings FATAL => 'all';

use IPC::Run;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RatchetNode;
use Test::More;
use Time::HiRes qw(time usleep);

my $soon = 10;
# No workers: leases that end by themselves would be recovered behind our back.
my $node = ratchet_node('main', preload => 1, conf => "autovacuum = off\nratchet.databases = ''");
my $seq  = 0;

sub sql { return $node->safe_psql($_[1] // 'postgres', $_[0]); }

# Start a client, with an application name of its own. start_waiter also sees that it sleeps.
sub start_client
{
    my ($sql, $dbname) = @_;
    my $name = 'client' . ++$seq;
    my %client = (name => $name, out => '', err => '', since => time);
    my @args = ('psql', '-XAtq', '-v', 'VERBOSITY=verbose', '-d', $node->connstr($dbname // 'postgres') . " application_name=$name");

    push @args, map { ('-c', $_) } ref $sql ? @$sql : $sql;
    $client{run} = IPC::Run::start(\@args, '<', \undef, '>', \$client{out}, '2>', \$client{err}, IPC::Run::timer($PostgreSQL::Test::Utils::timeout_default));
    return \%client;
}

sub waiting
{
    return "SELECT count(*) = 1 FROM pg_stat_activity WHERE application_name = '$_[0]{name}' AND state = 'active' AND wait_event_type = 'Extension'";
}

sub start_waiter
{
    my $client = start_client(@_);
    poll_until($node, waiting($client)) or BAIL_OUT("$client->{name} does not wait: $client->{err}");
    $client->{pid} = sql("SELECT pid FROM pg_stat_activity WHERE application_name = '$client->{name}'");
    return $client;
}

sub start_wait { return start_waiter("CALL ratchet.wait('{$_[0]}', '60 s'" . (defined $_[1] ? ", '{$_[1]}'" : '') . ')'); }

# What it said, if it says so soon.
sub said
{
    my ($client) = @_;
    my $start = time;

    while (time - $start < $soon && $client->{run}->pumpable) { $client->{run}->pump_nb; usleep(5_000); }
    return 'nothing, in time' if $client->{run}->pumpable;
    $client->{run}->finish;
    chomp(my $said = $client->{out} ne '' ? $client->{out} : $client->{err});
    return $said;
}

sub still_waits { return sql(waiting($_[0])) eq 't'; }
sub stop_client { my ($client) = @_; sql("SELECT pg_terminate_backend($client->{pid})"); said($client); return; }
sub wakeups     { return sql('SELECT wakeups FROM ratchet.waiter_stat'); }
sub empty       { return sql("SELECT count(*) FROM ratchet.claim('$_[0]', 'w', batch => 1000)"); }

# One waiter, one job. Nothing is pinned meanwhile.
{
    my $client = start_wait('one');
    is(sql("SELECT count(*) FROM pg_stat_activity WHERE pid = $client->{pid} AND backend_xmin IS NULL AND backend_xid IS NULL"),
        1, 'a waiter pins no snapshot');
    is(sql("SELECT count(*) FROM pg_locks WHERE pid = $client->{pid} AND locktype = 'relation'"), 0, 'nor any lock on a table');
    is(sql('SELECT waiting FROM ratchet.waiter_stat'), 1, 'it is counted');
    sql("SELECT ratchet.enqueue('k', queue => 'one')");
    is(said($client), 't', 'it is woken by the commit of an enqueue');
    is(sql('SELECT waiting FROM ratchet.waiter_stat'), 0, 'and not counted any more');
    empty('one');
}

# A rollback wakes nobody, of a savepoint neither at once; another database's commit does not, another queue's does not.
{
    my $client = start_wait('quiet');
    my $before = wakeups();
    sql("BEGIN; SELECT ratchet.enqueue('k', queue => 'quiet'); ROLLBACK");
    sql("SELECT ratchet.enqueue('k', queue => 'loud')");
    $node->safe_psql('postgres', 'CREATE DATABASE other');
    sql('CREATE EXTENSION ratchet', 'other');
    sql("SELECT ratchet.enqueue('k', queue => 'quiet')", 'other');
    sql("SELECT ratchet.enqueue('k', queue => 'quiet', hold => true)");
    is(wakeups() - $before, 0, 'neither a rollback nor jobs of others wake anybody');
    ok(still_waits($client), 'the waiter waits on');
    sql("BEGIN; SELECT ratchet.enqueue('k', queue => 'loud'); SAVEPOINT a; SELECT ratchet.enqueue('k', queue => 'quiet'); RELEASE a; COMMIT");
    is(said($client), 't', 'a released savepoint counts');
    empty('quiet');
}

# As many as the jobs need.
{
    my @clients = map { start_waiter([ "CALL ratchet.wait('{many}', '60 s')", "SELECT kind FROM ratchet.claim('many', 'w')" ]) } 1 .. 5;
    my $before  = wakeups();
    sql("SELECT ratchet.enqueue_many('k', ARRAY['{}', '{}']::jsonb[], queue => 'many')");
    is(join(' ', map { said($_) } @clients[ 0, 1 ]), "t\nk t\nk", 'two jobs wake the two that wait longest');
    is(wakeups() - $before, 2, 'two wake-ups');
    is(scalar(grep { still_waits($_) } @clients[ 2 .. 4 ]), 3, 'the others wait on');
    stop_client($_) for @clients[ 2 .. 4 ];
    is(sql('SELECT waiting FROM ratchet.waiter_stat'), 0, 'terminated waiters leave no slot behind');
}

# Kinds.
{
    my $x = start_wait('kinds', 'x');
    my $y = start_wait('kinds', 'y,z');
    sql("SELECT ratchet.enqueue('z', queue => 'kinds')");
    is(said($y), 't', 'the waiter for a kind is woken');
    ok(still_waits($x), 'the one for another kind is not');
    sql("SELECT ratchet.enqueue('x', queue => 'kinds')");
    is(said($x), 't', 'until its own comes');
    empty('kinds');
}

# More kinds than a slot can hold: such a waiter is woken for any, and passes on what it cannot use.
{
    my $many = start_wait('kinds', join(',', map { "n$_" } 1 .. 40));
    my $one  = start_wait('kinds', 'x');
    my $passed = sql('SELECT passed_on FROM ratchet.waiter_stat');
    sql("SELECT ratchet.enqueue('x', queue => 'kinds')");
    is(said($one), 't', 'a wake-up that does not fit is passed on');
    is(sql('SELECT passed_on FROM ratchet.waiter_stat') - $passed, 1, 'and counted');
    ok(still_waits($many), 'who passed it on waits on');
    empty('kinds');
    sql("SELECT ratchet.enqueue('n40', queue => 'kinds')");
    is(said($many), 't', 'and is woken by what fits');
    empty('kinds');
}

# The first in line gets the wake-up but never uses it. It is stopped meanwhile, so that it cannot be faster.
my %unused = (
    'is terminated'  => sub { sql("SELECT pg_terminate_backend($_[0]{pid})"); },
    'is canceled'    => sub { sql("SELECT pg_cancel_backend($_[0]{pid})"); },
    'loses its client' => sub { $_[0]{run}->kill_kill; });

for my $how (sort keys %unused)
{
    my $first  = start_wait('unused');
    my $second = start_wait('unused');
    kill 'STOP', $first->{pid} or BAIL_OUT("could not stop $first->{pid}: $!");
    sql("SELECT ratchet.enqueue('k', queue => 'unused')");
    ok(still_waits($second), "$how: only the first is woken");
    $unused{$how}->($first);
    kill 'CONT', $first->{pid};
    is(said($second), 't', "$how: the second gets the wake-up");
    empty('unused');
    eval { said($first); };
}

# wait() has answered, but its session ends without a claim.
{
    my $session = $node->background_psql('postgres');
    my $second;
    $session->query_safe('SELECT 1');
    my $pid = $session->query_safe('SELECT pg_backend_pid()');
    $session->{stdin} .= "CALL ratchet.wait('{debt}', '60 s');\n";
    $session->{run}->pump_nb;
    poll_until($node, "SELECT wait_event_type = 'Extension' FROM pg_stat_activity WHERE pid = $pid");
    $second = start_wait('debt');
    sql("SELECT ratchet.enqueue('k', queue => 'debt')");
    poll_until($node, "SELECT state = 'idle' FROM pg_stat_activity WHERE pid = $pid");
    ok(still_waits($second), 'one job, one wake-up');
    $session->{run}->kill_kill;
    is(said($second), 't', 'whose session ends without a claim passes it on');
    empty('debt');
}

# Once a claim has been made it is used up.
{
    my $first  = start_client([ "CALL ratchet.wait('{paid}', '60 s')", "SELECT kind FROM ratchet.claim('paid', 'w')" ]);
    poll_until($node, waiting($first));
    my $second = start_wait('paid');
    my $before = wakeups();
    sql("SELECT ratchet.enqueue('k', queue => 'paid')");
    is(said($first), "t\nk", 'wait and claim');
    is(wakeups() - $before, 1, 'a wake-up that led to a claim is not passed on');
    ok(still_waits($second), 'the second waits on');
    stop_client($second);
}

# What else brings work.
my $id = sql("SELECT ratchet.enqueue('k', queue => 'ways', max_attempts => 1)");
sub token { return sql("SELECT token FROM ratchet.claim('ways', 'w', lease => '1 ms')"); }
my $token = token();
my @ways = (
    [ 'release', sub { sql("SELECT ratchet.release('$id', '$token')"); } ],
    [ 'retry',   sub { sql("SELECT ratchet.retry('$id')"); }, sub { sql("SELECT ratchet.fail('$id', '$token', 'no')"); } ],
    [ 'resume',  sub { sql("SELECT ratchet.resume('$id')"); },
        sub { sql("SELECT ratchet.release('$id', '$token')"); sql("SELECT ratchet.pause('$id')"); } ],
    [ 'reschedule', sub { sql("SELECT ratchet.reschedule('$id', clock_timestamp())"); },
        sub { sql("SELECT ratchet.release('$id', '$token', '1 hour')"); } ],
    [ 'recovery', sub { sql("SELECT ratchet.maintenance_step('recover')"); } ],
    [ 'resume_queue', sub { sql("SELECT ratchet.resume_queue('ways')"); },
        sub { sql("SELECT ratchet.pause_queue('ways')"); sql("SELECT ratchet.release('$id', '$token')"); } ],
    [ 'an UPDATE by hand', sub { sql("UPDATE ratchet.job SET scheduled_at = clock_timestamp() WHERE id = '$id'"); },
        sub { sql("SELECT ratchet.release('$id', '$token', '1 hour')"); } ],
    [ 'COMMIT PREPARED', sub { sql("COMMIT PREPARED 'p'"); },
        sub { sql("BEGIN; SELECT ratchet.release('$id', '$token'); PREPARE TRANSACTION 'p'"); } ]);

for (@ways)
{
    my ($name, $act, $prepare) = @$_;
    $prepare->() if $prepare;
    my $client = start_wait('ways');
    $act->();
    is(said($client), 't', "$name wakes a waiter");
    $token = token();
    ok($token, "$name: and the job is there");
}

# A claim that is rolled back gives the job back, of a savepoint too.
{
    my $session = $node->background_psql('postgres');
    sql("SELECT ratchet.release('$id', '$token')");
    for my $undo ('ROLLBACK', 'ROLLBACK TO a; COMMIT')
    {
        $session->query_safe("BEGIN; SAVEPOINT a");
        is($session->query_safe("SELECT count(*) FROM ratchet.claim('ways', 'w')"), 1, "$undo: claimed");
        my $client = start_wait('ways');
        $session->query_safe($undo);
        is(said($client), 't', "$undo of a claim wakes a waiter");
    }
    $session->quit;
    empty('ways');
}

# Jobs due later: on time, whether they come before the wait or during it; the timer of a waiter that leaves is handed on.
sub late_ms { return "SELECT (extract(epoch FROM clock_timestamp() - max(scheduled_at)) * 1000)::int FROM ratchet.job WHERE queue = '$_[0]'"; }
sub wait_and_claim_due { return [ "CALL ratchet.wait('{due}', '60 s')", late_ms('due'), "SELECT kind FROM ratchet.claim('due', 'w')" ]; }
sub on_time
{
    my ($client, $name) = @_;
    my $said = said($client);
    like($said, qr/^t\n\d+\nk$/, "$name: a due job wakes a waiter");
    my ($late) = $said =~ /\n(\d+)/;
    cmp_ok($late // 9999, '<', 500, "$name: on time");
    return;
}
{
    sql("SELECT ratchet.enqueue('k', queue => 'due', run_at => clock_timestamp() + interval '1 s')");
    my $first = start_client(wait_and_claim_due());
    on_time($first, 'before');
    empty('due');

    $first = start_waiter(wait_and_claim_due());
    my $second = start_waiter(wait_and_claim_due());
    my $before = wakeups();
    sql("SELECT ratchet.enqueue('k', queue => 'due', run_at => clock_timestamp() + interval '1 s')");
    on_time($first, 'during');
    empty('due');
    ok(still_waits($second), 'during: the other one waits on');

    $first = start_waiter(wait_and_claim_due());
    sql("SELECT ratchet.enqueue('k', queue => 'due', run_at => clock_timestamp() + interval '1500 ms')");
    stop_client($second);
    on_time($first, 'handed on');
    empty('due');

    # Three jobs at one time for four waiters of one class.
    my @clients = map { start_waiter("CALL ratchet.wait('{due}', '60 s')") } 1 .. 4;
    sql("SELECT ratchet.enqueue_many('k', ARRAY['{}', '{}', '{}']::jsonb[], queue => 'due', run_at => clock_timestamp() + interval '1 s')");
    is(join(' ', map { said($_) } @clients[ 0 .. 2 ]), 't t t', 'three jobs that are due at once wake three');
    stop_client($clients[3]);
    empty('due');

    # An earlier one moves the timer forward.
    $first = start_waiter(wait_and_claim_due());
    sql("SELECT ratchet.enqueue('k', queue => 'due', run_at => clock_timestamp() + interval '1 hour')");
    sql("SELECT ratchet.enqueue('j', queue => 'due', run_at => clock_timestamp() + interval '1 s')");
    is(said($first) =~ s/\n.*//sr, 't', 'an earlier job moves the timer forward');
}

# claim(wait): by a commit, and with a batch it counts for that many.
{
    my $first  = start_waiter([ "SET ratchet.max_claim_wait = '60 s'", "SELECT count(*) FROM ratchet.claim('batch', 'w', batch => 3, wait => '60 s')" ]);
    my $second = start_waiter([ "SET ratchet.max_claim_wait = '60 s'", "SELECT count(*) FROM ratchet.claim('{x,batch}'::text[], 'w', wait => '60 s')" ]);
    sql("SELECT ratchet.enqueue_many('k', array_fill('{}'::jsonb, ARRAY[3]), queue => 'batch')");
    is(said($first), '3', 'a claim that waits gets its batch');
    ok(still_waits($second), 'and nobody else is woken for it');
    sql("SELECT ratchet.enqueue('k', queue => 'batch')");
    is(said($second), '1', 'both forms of claim wait');
}

# await
{
    my $job = sql("SELECT ratchet.enqueue('k', queue => 'await')");
    my $other = sql("SELECT ratchet.enqueue('k', queue => 'await')");
    my @clients = map { start_waiter("CALL ratchet.await('$job', '60 s')") } 1 .. 3;
    my $before = wakeups();
    my $t = sql("SELECT token FROM ratchet.claim('await', 'w', batch => 2) LIMIT 1");
    sql("BEGIN; SELECT ratchet.complete('$job', '$t', '1'); ROLLBACK");
    is(wakeups() - $before, 0, 'neither a claim nor a rolled back completion wakes who awaits the job');
    sql("SELECT ratchet.complete('$job', '$t', '{\"n\": 1}')");
    is(join(' ', map { said($_) } @clients), join(' ', ('succeeded|{"n": 1}') x 3), 'everybody who awaits a job is told');
    my $client = start_waiter("CALL ratchet.await('$other', '60 s')");
    sql("SELECT ratchet.cancel('$other')");
    is(said($client), 'canceled|', 'canceled is finished, too');
    sql("SELECT ratchet.configure_queue('await', archive_after => '0')");
    $job = sql("SELECT ratchet.enqueue('k', queue => 'await')");
    $client = start_waiter("CALL ratchet.await('$job', '60 s')");
    is(sql("SELECT ratchet.complete(id, token, '2') FROM ratchet.claim('await', 'w')"), 't', 'completed into the archive');
    is(said($client), 'succeeded|2', 'where await finds it');
}

# What ends a wait.
{
    my $start  = time;
    is(said(start_client("CALL ratchet.wait('{end}', '300 ms')")), 'f', 'the timeout');
    cmp_ok(time - $start, '>=', 0.3, 'not before it');
    like(said(start_client([ "SET statement_timeout = '300 ms'", "CALL ratchet.wait('{end}', '60 s')" ])), qr/57014/, 'statement_timeout');
    my $client = start_wait('end');
    sql("SELECT pg_cancel_backend($client->{pid})");
    like(said($client), qr/57014/, 'cancel');
    $client = start_wait('end');
    $client->{run}->kill_kill;
    ok(poll_until($node, "SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = $client->{pid}"), 'a closed client');
    is(sql('SELECT waiting FROM ratchet.waiter_stat'), 0, 'no slot is left over');
    my $session = $node->background_psql('postgres', on_error_stop => 0);
    is($session->query("SET statement_timeout = '200 ms'; CALL ratchet.wait('{end}', '60 s')"), '', 'a session survives its canceled wait');
    is($session->query("CALL ratchet.wait('{end}', '50 ms')"), 'f', 'and waits again');
    $session->quit;

    $client = start_wait('end');
    my $awaits = start_waiter("CALL ratchet.await('" . sql("SELECT ratchet.enqueue('k', queue => 'never')") . "', '60 s')");
    $start = time;
    $node->stop('fast');
    cmp_ok(time - $start, '<', 5, 'fast shutdown');
    like(said($client), qr/57P01/, 'which the waiter is told');
    like(said($awaits), qr/57P01/, 'who awaits a job, too');
}

# More waiters than slots: the rest polls, is counted, and gets its work all the same.
{
    $node->append_conf('postgresql.conf', 'ratchet.max_waiters = 1');
    $node->start;
    my @clients = map { start_wait('full') } 1 .. 3;
    is(sql('SELECT slots, waiting, overflows FROM ratchet.waiter_stat'), '1|1|2', 'overflow is counted');
    sql("SELECT ratchet.enqueue_many('k', array_fill('{}'::jsonb, ARRAY[3]), queue => 'full')");
    is(join(' ', map { said($_) } @clients), 't t t', 'and everybody gets work');
    is(empty('full'), 3, 'which is there');

    # After kill -9 of a waiting backend the server starts anew, with no waiters.
    my $client = start_wait('full');
    my $position = log_position($node);
    kill 'KILL', $client->{pid};
    $node->wait_for_log(qr/database system is ready to accept connections/, $position);
    poll_until($node, 'SELECT waiting = 0 FROM ratchet.waiter_stat');
    $client = start_wait('full');
    sql("SELECT ratchet.enqueue('k', queue => 'full')");
    is(said($client), 't', 'after a crash restart waiters are woken as before');
}

$node->stop;
done_testing();
