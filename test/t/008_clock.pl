# The wall clock goes back and forth: ids keep their order, no lease outlives its length, nothing is recovered twice, and a
# lease that is only younger than the look at the clock is none that went back.

use strict;
use warnings FATAL => 'all';

use File::Basename;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RatchetNode;
use Test::More;

my $dir  = PostgreSQL::Test::Utils::tempdir();
my $shim = dirname(__FILE__) . '/../lib/clockshim.c';

if (system("cc -shared -fPIC -O1 -o '$dir/clockshim.so' '$shim' -ldl >'$dir/cc.log' 2>&1") != 0)
{
    plan skip_all => 'no C compiler to build the clock with';
}

# Move the server's clock to this many seconds from the real one.
sub set_clock
{
    my ($seconds) = @_;
    open my $file, '+<', "$dir/offset" or die "cannot open: $!";
    binmode $file;
    syswrite $file, pack('q', $seconds * 1_000_000);
    close $file;
    return;
}

append_to_file("$dir/offset", pack('q', 0));
my $node = ratchet_node('main', start => 0);
{
    local $ENV{LD_PRELOAD}         = "$dir/clockshim.so";
    local $ENV{RATCHET_CLOCK_FILE} = "$dir/offset";
    $node->start;
}
$node->safe_psql('postgres', 'CREATE EXTENSION ratchet');

sub sql { return $node->safe_psql('postgres', $_[0]); }

sub states
{
    my ($queue) = @_;
    return sql(qq{SELECT string_agg(kind || ' ' || state || ' ' || attempt || '/' || crashes, ', ' ORDER BY kind) FROM ratchet.jobs WHERE queue = '$queue'});
}

my $real = time;
set_clock(3600);
cmp_ok(abs(sql('SELECT extract(epoch FROM clock_timestamp())::bigint') - $real - 3600), '<', 60, 'the clock can be moved');
set_clock(0);

# Ids of one session grow whatever the clock does.
my $session = $node->background_psql('postgres');
my @ids;
for my $seconds (0, -3600, -86400 * 300, -3600, 0, 7200, 0)
{
    set_clock($seconds);
    push @ids, split /\n/, $session->query_safe(q{SELECT ratchet.enqueue_many('k', array_fill('{}'::jsonb, ARRAY[20]), queue => 'ids')});
    push @ids, $session->query_safe(q{SELECT ratchet.enqueue('k', queue => 'ids')});
}
set_clock(0);
is(join(' ', @ids), join(' ', sort @ids), 'ids of one session are in order, with the clock set back five times');
is(sql(q{SELECT count(DISTINCT id) FROM ratchet.jobs WHERE queue = 'ids'}), scalar @ids, 'and differ');
$session->quit;

# The clock goes back: a lease has more left than it is long. It must end, and so its job is recovered, once.
sql(q{SELECT ratchet.enqueue(k, queue => 'back') FROM unnest(ARRAY['a', 'b', 'c']) k});
my $token = sql(q{SELECT token FROM ratchet.claim('back', 'w', batch => 2, lease => '1 minute') LIMIT 1});
my $long = sql(q{SELECT token FROM ratchet.claim('back', 'w', lease => '10 hours')});
is(sql(q{SELECT ratchet.maintenance_step('recover')}), '0', 'leases run');
set_clock(-7200);
is(sql(q{SELECT ratchet.maintenance_step('recover')}), '3', 'after the clock was set back by two hours none outlives its length');
is(states('back'), 'a pending 0/1, b pending 0/1, c pending 0/1', 'they are recovered as orphans');
is(sql(q{SELECT ratchet.maintenance_step('recover')}), '0', 'once');
is(sql(qq{SELECT bool_or(ratchet.complete(id, token)) FROM ratchet.jobs, unnest(ARRAY['$token', '$long']::uuid[]) token WHERE queue = 'back'}), 'f', 'the old tokens are fenced');

# What is claimed under the new time is left alone, and heartbeats extend it.
sql(q{SELECT ratchet.enqueue('fresh', queue => 'after', run_at => now() - interval '3 hours')});
my ($id, $fresh) = split /\|/, sql(q{SELECT id, token FROM ratchet.claim('after', 'w', lease => '1 minute')});
is(sql(q{SELECT ratchet.maintenance_step('recover')}), '0', 'a lease of the new time is left alone');
is(sql(qq{SELECT status FROM ratchet.heartbeat(ARRAY['$id']::uuid[], ARRAY['$fresh']::uuid[], '2 hours')}), 'ok', 'so is one that was extended');
is(sql(q{SELECT ratchet.maintenance_step('recover')}), '0', 'which may be longer than the first');
# Forward to the real time: that is two hours later.
set_clock(0);
is(sql(q{SELECT ratchet.maintenance_step('recover') + ratchet.maintenance_step('recover')}), '1', 'when the clock is right again it has ended, once');
is(states('after'), 'fresh pending 0/1', 'and counts as one crash');

# A heartbeat before the set-back and none after it.
sql(q{SELECT ratchet.enqueue('beaten', queue => 'beat')});
($id, $fresh) = split /\|/, sql(q{SELECT id, token FROM ratchet.claim('beat', 'w', lease => '3 hours')});
is(sql(qq{SELECT status FROM ratchet.heartbeat(ARRAY['$id']::uuid[], ARRAY['$fresh']::uuid[], '1 minute')}), 'ok', 'a heartbeat makes a lease shorter');
set_clock(-1800);
is(sql(q{SELECT ratchet.maintenance_step('recover')}), '1', 'it is the shorter length that counts');
set_clock(0);

# The clock jumps ahead: all leases end, once; and what is claimed meanwhile does not last when it comes back.
sql(q{SELECT ratchet.enqueue('j' || n, queue => 'ahead') FROM generate_series(1, 3) n});
sql(q{SELECT id FROM ratchet.claim('ahead', 'w', batch => 3, lease => '5 minutes')});
set_clock(3600);
is(sql(q{SELECT ratchet.maintenance_step('recover')}), '3', 'a jump ahead ends all leases');
is(sql(q{SELECT ratchet.maintenance_step('recover')}), '0', 'once');
is(sql(q{SELECT count(*) FROM ratchet.claim('ahead', 'w', batch => 10, lease => '5 minutes')}), '3', 'their jobs are handed out again');
is(sql(q{SELECT count(*) FROM ratchet.claim('ahead', 'w', batch => 10)}), '0', 'to one worker');
set_clock(0);
is(sql(q{SELECT ratchet.maintenance_step('recover')}), '3', 'leases from the wrong future end when the clock is set right');
is(states('ahead'), 'j1 pending 0/2, j2 pending 0/2, j3 pending 0/2', 'each of the two counted once');

# TTL and timeout: once, too.
sql(q{SELECT ratchet.enqueue('ttl', queue => 'ttl', expires_in => '10 minutes')});
sql(q{SELECT ratchet.enqueue('timeout', queue => 'timeout', timeout => '10 minutes', max_attempts => 1, lease => '10 hours')});
sql(q{SELECT id FROM ratchet.claim('timeout', 'w')});
set_clock(3600);
is(sql(qq{SELECT ratchet.maintenance_step('$_') || ' ' || ratchet.maintenance_step('$_')}), '1 0', "$_ happens once") for ('expire', 'timeout');
set_clock(0);
is(states('ttl') . ', ' . states('timeout'), 'ttl expired 0/0, timeout failed 1/0', 'and stays when the clock goes back');

# Recovery looks at the clock and then at the rows. A lease granted or extended in between is no sign of a clock that went
# back: its worker has done nothing wrong.
sql(q{SELECT ratchet.enqueue(k, queue => 'race') FROM unnest(ARRAY['claimed', 'extended']) k});
my ($extended, $its_token) = split /\|/, sql(q{SELECT id, token FROM ratchet.claim('race', 'w', kinds => ARRAY['extended'], lease => '1 hour')});
my $holder   = $node->background_psql('postgres');
my $recovery = $node->background_psql('postgres');
$holder->query_safe('BEGIN; LOCK TABLE ratchet.job IN ACCESS EXCLUSIVE MODE');
$recovery->query_until(qr/started/, q{\echo started
SELECT ratchet.maintenance_step('recover');
});
poll_until($node, q{SELECT count(*) = 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%maintenance_step%' AND pid <> pg_backend_pid()});
my $claimed_token = $holder->query_safe(q{SELECT token FROM ratchet.claim('race', 'w', kinds => ARRAY['claimed'], lease => '1 hour')});
$holder->query_safe(qq{SELECT * FROM ratchet.heartbeat(ARRAY['$extended']::uuid[], ARRAY['$its_token']::uuid[])});
$holder->query_safe('COMMIT');
# The next statement of that session comes after its answer.
$recovery->query_safe('SELECT 1');
is(states('race'), 'claimed running 1/0, extended running 1/0', 'recovery that had to wait leaves younger leases alone');
$holder->quit;
$recovery->quit;

done_testing();
