# Crashes: what was acknowledged is there afterwards, what was not committed is undone, and a worker from before the crash
# can change nothing once its job was recovered. At last several clients at once with a ledger, while the server is killed.

use strict;
use warnings FATAL => 'all';

use IO::Handle;
use IPC::Run;
use POSIX ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RatchetNode;
use Test::More;
use Time::HiRes qw(usleep);

# Only a committed transaction that is really on disk counts; Cluster turns fsync off, which kill -9 does not mind.
my $node = ratchet_node('main', conf => "synchronous_commit = on\nautovacuum = off");

sub sql { return $node->safe_psql('postgres', $_[0]); }

sub state_of { return sql("SELECT state FROM ratchet.job WHERE id = '$_[0]'"); }

my %crash = (
    'kill -9 of a backend'      => sub { crash_backend($node, $_[0]); },
    'kill -9 of the postmaster' => sub { crash_server($node); forget_session($_[0]); });

# The three moments, in one crash each: a claim and a completion after their commit, and both before.
for my $how (sort keys %crash)
{
    sql(q{SELECT ratchet.enqueue('k', jsonb_build_object('n', n), queue => 'moments', idempotency_key => gen_random_uuid()::text, business_key => 'b' || n)
          FROM generate_series(1, 5) n});
    my ($done, $claimed, $finishing, $taken, $untouched) = split /\n/, sql(q{SELECT id FROM ratchet.job WHERE queue = 'moments' AND state = 'pending' ORDER BY payload->'n'});

    my $token = sql("SELECT token FROM ratchet.claim('moments', 'w', batch => 3, lease => '1 hour') LIMIT 1");
    is(sql("SELECT ratchet.complete('$done', '$token', '{\"ok\": true}')"), 't', "$how: a job is completed");

    my $session = $node->background_psql('postgres', on_error_stop => 0);
    $session->query_safe('BEGIN');
    is($session->query_safe("SELECT ratchet.complete('$finishing', '$token')"), 't', "$how: another one too, not committed");
    is($session->query_safe("SELECT id FROM ratchet.claim('moments', 'w2')"), $taken, "$how: one is claimed, not committed");
    my $unborn = $session->query_safe("SELECT ratchet.enqueue('unborn', queue => 'moments', idempotency_key => 'never', business_key => 'never')");
    is($session->query_safe("SELECT ratchet.cancel('$untouched')"), 't', "$how: one is canceled, not committed");

    $crash{$how}->($session);

    is(state_of($done), 'succeeded', "$how: a committed completion is there");
    is(sql("SELECT result FROM ratchet.job WHERE id = '$done'"), '{"ok": true}', "$how: with its result");
    is(state_of($claimed), 'running', "$how: a committed claim is there");
    is(state_of($finishing), 'running', "$how: an uncommitted completion is undone");
    is(state_of($taken), 'pending', "$how: an uncommitted claim is undone");
    is(state_of($untouched), 'pending', "$how: an uncommitted cancel is undone");
    is(state_of($unborn), '', "$how: an uncommitted enqueue is undone");
    is(sql(q{SELECT count(*) FROM ratchet.idempotency_key WHERE key = 'never'}), '0', "$how: with its idempotency key");

    # Keys are as the jobs are.
    is( sql(q{SELECT count(*) FROM ratchet.job j FULL JOIN (SELECT * FROM ratchet.business_key WHERE owner IS NOT NULL) k ON k.owner = j.id
              WHERE (j.state IN ('pending', 'running') AND j.business_key IS NOT NULL) IS DISTINCT FROM (k.owner IS NOT NULL)}),
        '0', "$how: business keys belong to the live jobs");
    is(sql("SELECT ratchet.enqueue('k', queue => 'moments', business_key => 'never') IS NOT NULL"), 't', "$how: an uncommitted key is free");

    # The token survives the crash, and the recovery ends it.
    is(sql("SELECT ratchet.complete('$finishing', '$token')"), 't', "$how: the token of before completes the job");
    is(sql("SELECT status FROM ratchet.heartbeat(ARRAY['$claimed']::uuid[], ARRAY['$token']::uuid[], '1 ms')"), 'ok', "$how: and extends a lease");
    poll_until($node, "SELECT ratchet.maintenance_step('recover') > 0");
    is(sql("SELECT state || ' ' || attempt || ' ' || crashes FROM ratchet.job WHERE id = '$claimed'"), 'pending 0 1', "$how: the orphan is recovered");
    is(sql("SELECT ratchet.complete('$claimed', '$token')"), 'f', "$how: then the old token completes nothing");
    is(sql("SELECT ratchet.fail('$claimed', '$token', 'late') IS NULL"), 't', "$how: nor fails it");
    is(sql("SELECT count(*) FROM ratchet.job_error WHERE job_id = '$claimed'"), '1', "$how: and leaves no trace");

    # All that is left is handed out.
    is(sql("SELECT count(ratchet.complete(id, token) OR NULL) FROM ratchet.claim('moments', 'w', batch => 100)"), '4', "$how: all the rest can be done");
    is(sql("SELECT count(*) FROM ratchet.job WHERE state <> 'succeeded'"), '0', "$how: and is");
}

# Several clients and a ledger of what the server acknowledged. A line is written when the answer has come; what was under
# way when the server went down may or may not have happened.
my $ledger   = PostgreSQL::Test::Utils::tempdir();
my $stop     = "$ledger/stop";
my @children;

# A client in a process of its own: asks one psql after the other, and writes down each line of their answers.
sub client
{
    my ($name, $script) = @_;
    my $pid = fork;

    die "cannot fork: $!" unless defined $pid;
    if ($pid)
    {
        push @children, $pid;
        return;
    }
    open my $out, '>', "$ledger/$name" or POSIX::_exit(1);
    $out->autoflush(1);
    while (!-e $stop)
    {
        my ($answer, $complaint) = ('', '');
        # Each statement is a transaction of its own, and its answer is there when it is committed.
        eval {
            IPC::Run::run([ 'psql', '-XAtq', '-v', 'ON_ERROR_STOP=1', '-d', $node->connstr('postgres'), '-f', '-' ],
                '<', \$script, '>', \$answer, '2>', \$complaint);
        };
        print $out $answer;
        usleep(20_000) if $complaint ne '';
    }
    close $out;
    POSIX::_exit(0);
}

sub ledger_lines
{
    my ($pattern) = @_;
    my @lines;
    for my $file (glob "$ledger/$pattern")
    {
        # The last line may be half a line if psql was cut off while writing; nothing was lost then, psql had not got it.
        push @lines, grep { /^\w+ [-0-9a-f]{36}( [-0-9a-f]{36})?$/ } split /\n/, slurp_file($file);
    }
    return @lines;
}

client("producer$_", join "\n", ("SELECT 'enqueued ' || ratchet.enqueue('k', queue => 'chaos');") x 20) for 1 .. 2;
# One statement claims, the next one completes what it got.
client("consumer$_", join "\n", (qq{
    SELECT coalesce(string_agg(id::text, ','), '') AS ids, coalesce(min(token::text), '') AS token FROM ratchet.claim('chaos', 'w$_', batch => 3, lease => '500 ms') \\gset
    SELECT 'completed ' || id || ' ' || :'token' FROM ratchet.complete_many(string_to_array(:'ids', ',')::uuid[], ARRAY[NULLIF(:'token', '')]::uuid[]) id WHERE :'token' <> '';
}) x 20) for 1 .. 3;

for my $round (1 .. 3)
{
    my $before = sql("SELECT count(*) FROM ratchet.job WHERE queue = 'chaos' AND state = 'succeeded'");
    poll_until($node, "SELECT count(*) >= $before + 100 FROM ratchet.job WHERE queue = 'chaos' AND state = 'succeeded'");
    if ($round == 2)
    {
        my $position = log_position($node);
        my ($victim) = split /\n/, sql("SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()");
        if (defined $victim && kill 'KILL', $victim)
        {
            $node->wait_for_log(qr/all server processes terminated; reinitializing/, $position);
            poll_until($node, 'SELECT true');
        }
        else { crash_server($node); }
    }
    else { crash_server($node); }
}
poll_until($node, "SELECT count(*) > 0 FROM ratchet.job WHERE queue = 'chaos' AND created_at > pg_postmaster_start_time()");
append_to_file($stop, "1\n");
waitpid $_, 0 for @children;

# Let all leases run out, and do what is left.
my $drained = poll_until($node, q{
    SELECT 0 * ratchet.maintenance_step('recover')
         + (SELECT count(*) FROM (SELECT ratchet.complete(id, token) FROM ratchet.claim('chaos', 'last', batch => 1000)) c)
         + (SELECT count(*) FROM ratchet.job WHERE queue = 'chaos' AND state IN ('pending', 'running') AND crashes < 2)}, '0');
ok($drained, 'after the crashes everything that is due can be done');

my (%enqueued, %completed, $twice);
$enqueued{ (split / /)[1] }++ for ledger_lines('producer*');
$completed{ (split / /)[1] }++ for ledger_lines('consumer*');
note(keys(%enqueued) . ' acknowledged, ' . keys(%completed) . ' of them completed by the consumers');
cmp_ok(scalar keys %enqueued, '>', 100, 'the producers got acknowledgements');
cmp_ok(scalar keys %completed, '>', 100, 'the consumers too');

my %there = map { (split /\|/)[0, 1] } split /\n/, sql("SELECT id, state FROM ratchet.job WHERE queue = 'chaos'");
is(join(' ', grep { !exists $there{$_} } keys %enqueued), '', 'no acknowledged job is lost');
is(join(' ', grep { !exists $there{$_} } keys %completed), '', 'none was completed that does not exist');
is(join(' ', grep { ($there{$_} // '') ne 'succeeded' } keys %completed), '', 'every acknowledged completion is there');
is(join(' ', grep { $completed{$_} > 1 } keys %completed), '', 'no job was completed twice');
is(join(' ', grep { $enqueued{$_} > 1 } keys %enqueued), '', 'no id was given twice');

# The tables and their indexes agree.
is(sql(q{SET enable_seqscan = off; SELECT count(*) FROM ratchet.job WHERE ready_at IS NOT NULL}),
    sql(q{SET enable_indexscan = off; SET enable_bitmapscan = off; SET enable_indexonlyscan = off;
        SELECT count(*) FROM ratchet.job WHERE state = 'pending' AND waiting_on = 0}), 'the ready index has the pending jobs');
is(sql(q{SELECT count(*) FROM ratchet.job WHERE (left_at IS NULL) <> (state = 'pending')}), '0', 'left_at is set for all but pending jobs');

$node->stop;
done_testing();
