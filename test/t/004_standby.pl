# A streaming standby: what one can read there, that nothing can be written, and that work goes on after a promotion.

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RatchetNode;
use Test::More;

my $primary = ratchet_node('primary', streaming => 1);
$primary->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'base', has_streaming => 1);
$standby->start;

$primary->safe_psql('postgres', q{
    CREATE ROLE regress_producer;
    SELECT ratchet.grant_access('regress_producer', 'enqueue');
    SELECT ratchet.configure_queue('q', priority => 3);
    SELECT ratchet.node_heartbeat('n');
    SELECT ratchet.configure_queue('direct', archive_after => '0');
    SELECT ratchet.enqueue('pending', queue => 'q', idempotency_key => 'i', business_key => 'b');
    SELECT ratchet.enqueue('archived', queue => 'direct');
    SELECT ratchet.complete(id, token) FROM ratchet.claim('direct', 'w');
    SELECT ratchet.enqueue('failed', queue => 'work');
    SELECT ratchet.fail(id, token, 'broken', false) FROM ratchet.claim('work', 'w');
    SELECT ratchet.enqueue('orphan', queue => 'work', lease => '1 ms');
    SELECT id FROM ratchet.claim('work', 'w');
    SELECT ratchet.enqueue('overdue', queue => 'work', run_at => now() - interval '1 hour', expires_in => '1 minute')});
$primary->safe_psql('postgres', q{SELECT ratchet.enqueue('running', queue => 'claimed')});
my ($running, $token) = split /\|/, $primary->safe_psql('postgres', q{SELECT id, token FROM ratchet.claim('claimed', 'w', lease => '1 hour')});
$primary->wait_for_catchup($standby);

# Reading.
is($standby->safe_psql('postgres', 'SELECT pg_is_in_recovery()'), 't', 'the standby is one');
for my $view ('jobs', 'job_errors', 'queues', 'node', 'transition')
{
    my $query = "SELECT count(*), md5(string_agg(v::text, ' ' ORDER BY v::text)) FROM ratchet.$view v";
    my $there = $primary->safe_psql('postgres', $query);
    isnt($there, '0|', "ratchet.$view has rows");
    is($standby->safe_psql('postgres', $query), $there, "ratchet.$view on the standby");
}
is($standby->safe_psql('postgres', q{SELECT ratchet.has_access('q', 'work'), ratchet.is_terminal('failed'), cardinality(ratchet.terminal_states())}),
    't|t|5', 'functions that only tell');
is($standby->safe_psql('postgres', q{SET ROLE regress_producer; SELECT ratchet.has_access('q', 'work'), ratchet.has_access('q', 'enqueue')}),
    'f|t', 'rights are the same');

# Writing: every function, with arguments that would be good on the primary.
my %writes = (
    enqueue      => q{ratchet.enqueue('k')},
    enqueue_many => q{ratchet.enqueue_many('k', ARRAY['{}']::jsonb[])},
    'enqueue_many(jobs)' => q{ratchet.enqueue_many('[{"kind": "k"}]')},
    'enqueue with a known key' => q{ratchet.enqueue('pending', queue => 'q', idempotency_key => 'i')},
    claim            => q{ratchet.claim('q', 'w')},
    'claim(queues)'  => q{ratchet.claim(ARRAY['q'], 'w')},
    'claim of an empty queue' => q{ratchet.claim('empty', 'w')},
    complete         => qq{ratchet.complete('$running', '$token')},
    complete_many    => qq{ratchet.complete_many(ARRAY['$running']::uuid[], ARRAY['$token']::uuid[])},
    complete_and_claim => qq{ratchet.complete_and_claim(ARRAY['$running']::uuid[], ARRAY['$token']::uuid[], 'q', 'w')},
    fail             => qq{ratchet.fail('$running', '$token', 'e')},
    skip             => qq{ratchet.skip('$running', '$token')},
    release          => qq{ratchet.release('$running', '$token')},
    heartbeat        => qq{ratchet.heartbeat(ARRAY['$running']::uuid[], ARRAY['$token']::uuid[])},
    progress         => qq{ratchet.progress('$running', '$token', 0.5)},
    retry            => qq{ratchet.retry('$running')},
    retry_many       => q{ratchet.retry_many('work')},
    pause            => qq{ratchet.pause('$running')},
    resume           => qq{ratchet.resume('$running')},
    cancel           => qq{ratchet.cancel('$running')},
    cancel_many      => q{ratchet.cancel_many('work')},
    rerun            => qq{ratchet.rerun('$running')},
    reschedule       => qq{ratchet.reschedule('$running', now())},
    forget           => qq{ratchet.forget('$running')},
    configure_queue  => q{ratchet.configure_queue('q', priority => 1)},
    pause_queue      => q{ratchet.pause_queue('q')},
    resume_queue     => q{ratchet.resume_queue('q')},
    node_heartbeat   => q{ratchet.node_heartbeat('n')},
    drain            => q{ratchet.drain('n')},
    undrain          => q{ratchet.undrain('n')},
    try_lock         => q{ratchet.try_lock('l', 'o', '1 minute')},
    renew_lock       => q{ratchet.renew_lock('l', 'o', '1 minute')},
    unlock           => q{ratchet.unlock('l', 'o')},
    grant_access     => q{ratchet.grant_access('regress_producer', 'work')},
    revoke_access    => q{ratchet.revoke_access('regress_producer', 'work')},
    map { ("maintenance_step $_" => "ratchet.maintenance_step('$_')") } qw(guard nodes recover timeout expire locks archive partitions purge keys));
for my $name (sort keys %writes)
{
    sql_fails($standby, 'postgres', "SELECT $writes{$name}", '25006', "$name is refused on the standby, with a hint", qr/HINT:  \S+/);
}
sql_fails($standby, 'postgres', 'CALL ratchet.run_maintenance()', '25006', 'run_maintenance too', qr/HINT:  \S+/);
# Who has no right is told that, and nothing about the server.
sql_fails($standby, 'postgres', q{SET ROLE regress_producer; SELECT ratchet.enqueue('k')}, '25006', 'a producer is told that it is a standby', qr/HINT:  \S+/);

# A read-only transaction on the primary is refused as well.
sql_fails($primary, 'postgres', "BEGIN READ ONLY; SELECT $writes{$_}", '25006', "$_ is refused in a read-only transaction") for sort keys %writes;
sql_fails($primary, 'postgres', 'SET default_transaction_read_only = on; CALL ratchet.run_maintenance()', '25006', 'and so is run_maintenance');

# Promotion, as after a crash of the primary.
my @old_ids = split /\n/, $primary->safe_psql('postgres', q{SELECT ratchet.enqueue_many('before', array_fill('{}'::jsonb, ARRAY[50]))});
$primary->wait_for_catchup($standby);
$primary->stop('immediate');
$standby->promote;
poll_until($standby, 'SELECT NOT pg_is_in_recovery()');

is($standby->safe_psql('postgres', qq{SELECT ratchet.complete('$running', '$token', strict => true)}), 't', 'the token from before the promotion completes its job');
is($standby->safe_psql('postgres', q{SELECT ratchet.enqueue('pending', queue => 'q', idempotency_key => 'i') = id FROM ratchet.jobs WHERE idempotency_key = 'i'}),
    't', 'an idempotency key still stands for its job');
sql_fails($standby, 'postgres', q{SELECT ratchet.enqueue('pending', queue => 'q', business_key => 'b')}, 'RT002', 'a business key is still held');
$standby->safe_psql('postgres', 'CALL ratchet.run_maintenance()');
is($standby->safe_psql('postgres', q{SELECT kind || ' ' || state FROM ratchet.job WHERE kind IN ('orphan', 'overdue') ORDER BY 1}),
    "orphan pending\noverdue expired", 'maintenance does what is due');
is($standby->safe_psql('postgres', q{SELECT kind FROM ratchet.claim(ARRAY['q', 'work'], 'w', batch => 10)}), "pending\norphan", 'the rest is handed out');
my @new_ids = split /\n/, $standby->safe_psql('postgres', q{SELECT ratchet.enqueue_many('after', array_fill('{}'::jsonb, ARRAY[50]))});
my %seen;
$seen{$_}++ for @old_ids, @new_ids;
is(scalar keys %seen, 100, 'ids do not repeat');
is($standby->safe_psql('postgres', q{SELECT count(DISTINCT id) FROM ratchet.claim('default', 'w', batch => 1000)}), '100', 'nor is a job lost');

done_testing();
