# Two-phase commit: enqueue, complete and cancel can be prepared and survive a crash that way; a claim cannot, because a
# prepared one would keep its job from everybody for as long as it likes.

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RatchetNode;
use Test::More;

my $node = ratchet_node('main');

sub sql { return $node->safe_psql('postgres', $_[0]); }
sub state_of { return sql("SELECT state FROM ratchet.jobs WHERE id = '$_[0]'"); }

my ($done, $stopped, $failing, $kept) = split /\n/, sql(q{SELECT ratchet.enqueue('k', queue => 'q', business_key => 'b' || n) FROM generate_series(1, 4) n});
my $token = sql(q{SELECT token FROM ratchet.claim('q', 'w', batch => 3) LIMIT 1});

# What may be prepared. LIMIT 1 above claims three: one token for all of them.
sql(qq{BEGIN; SELECT ratchet.enqueue('prepared', queue => 'p', idempotency_key => 'i', business_key => 'b'); PREPARE TRANSACTION 'enqueue'});
sql(qq{BEGIN; SELECT ratchet.complete('$done', '$token', '"result"', strict => true); PREPARE TRANSACTION 'complete'});
sql(qq{BEGIN; SELECT ratchet.cancel('$stopped', 'reason'); PREPARE TRANSACTION 'cancel'});
sql(qq{BEGIN; SELECT ratchet.fail('$failing', '$token', 'error', false); PREPARE TRANSACTION 'fail'});
sql(qq{BEGIN; SELECT ratchet.cancel('$kept'); PREPARE TRANSACTION 'cancel rolled back'});
sql(qq{BEGIN; SELECT ratchet.enqueue('rolled back', queue => 'p', idempotency_key => 'i2', business_key => 'b2'); PREPARE TRANSACTION 'enqueue rolled back'});

for my $moment ('before the crash', 'after the crash')
{
    is(sql(q{SELECT string_agg(gid, ', ' ORDER BY gid) FROM pg_prepared_xacts}), 'cancel, cancel rolled back, complete, enqueue, enqueue rolled back, fail',
        "$moment: all are prepared");
    is(sql(q{SELECT string_agg(state::text, ' ' ORDER BY id) FROM ratchet.jobs}), 'running running running pending', "$moment: nothing of it is visible");
    is(sql(q{SELECT count(*) FROM ratchet.claim(ARRAY['p', 'q'], 'w', batch => 10)}), '0', "$moment: nothing is handed out, and nobody waits");
    is(sql(qq{SELECT status FROM ratchet.heartbeat(ARRAY['$done']::uuid[], ARRAY['$token']::uuid[])}), 'busy', "$moment: a heartbeat says busy");
    is(sql(qq{SELECT ratchet.maintenance_step('recover') + ratchet.maintenance_step('timeout')}), '0', "$moment: recovery leaves it alone");
    sql_fails($node, 'postgres', q{SET lock_timeout = '50 ms'; SELECT ratchet.enqueue('prepared', queue => 'p', idempotency_key => 'i')},
        '55P03', "$moment: its idempotency key is waited for");
    sql_fails($node, 'postgres', q{SET lock_timeout = '50 ms'; SELECT ratchet.enqueue('prepared', queue => 'p', business_key => 'b')},
        '55P03', "$moment: and its business key");
    crash_server($node) if $moment eq 'before the crash';
}

sql(q{COMMIT PREPARED 'enqueue'});
sql(q{COMMIT PREPARED 'complete'});
sql(q{COMMIT PREPARED 'cancel'});
sql(q{COMMIT PREPARED 'fail'});
sql(q{ROLLBACK PREPARED 'cancel rolled back'});
sql(q{ROLLBACK PREPARED 'enqueue rolled back'});

is(state_of($done), 'succeeded', 'the completion is there');
is(sql("SELECT result FROM ratchet.jobs WHERE id = '$done'"), '"result"', 'with its result');
is(state_of($stopped), 'canceled', 'the cancel is there');
is(state_of($failing), 'failed', 'the failure is there');
is(sql("SELECT error FROM ratchet.job_errors WHERE job_id = '$failing'"), 'error', 'with its error');
is(state_of($kept), 'pending', 'a cancel that was rolled back is not');
is(sql(q{SELECT ratchet.enqueue('prepared', queue => 'p', idempotency_key => 'i') = id FROM ratchet.jobs WHERE kind = 'prepared'}), 't', 'a committed key stands for its job');
sql_fails($node, 'postgres', q{SELECT ratchet.enqueue('k', queue => 'p', business_key => 'b')}, 'RT002', 'and a business key is held');
is(sql(q{SELECT ratchet.enqueue('anew', queue => 'p', idempotency_key => 'i2', business_key => 'b2') IS NOT NULL}), 't', 'those of a rolled-back one are free');
is(sql(q{SELECT string_agg(kind, ' ' ORDER BY kind) FROM ratchet.claim(ARRAY['p', 'q'], 'w', batch => 10)}), 'anew k prepared', 'what came of it is handed out');

# What may not: a claim, however it is wrapped, as long as its job is left running.
my $claim = q{SELECT id FROM ratchet.claim('c', 'w')};
sql(q{SELECT ratchet.enqueue('k', queue => 'c') FROM generate_series(1, 2)});
sql_fails($node, 'postgres', "BEGIN; $claim; PREPARE TRANSACTION 'x'", '0A000', 'a claim is not prepared', qr/HINT:  \S+/);
sql_fails($node, 'postgres', "BEGIN; SAVEPOINT s; $claim; RELEASE s; PREPARE TRANSACTION 'x'", '0A000', 'nor one in a released savepoint');
sql_fails($node, 'postgres', "BEGIN; SAVEPOINT s; $claim; ROLLBACK TO s; $claim; PREPARE TRANSACTION 'x'", '0A000', 'nor one after a rolled-back one');
sql_fails($node, 'postgres', q{BEGIN; SELECT ratchet.complete_and_claim('{}', '{}', 'c', 'w'); PREPARE TRANSACTION 'x'}, '0A000', 'nor one of complete_and_claim');
sql_fails($node, 'postgres', q{BEGIN; UPDATE ratchet.job SET state = 'running', token = gen_random_uuid(), picked_by = 'w', picked_at = now(), lease_expires_at = now() + interval '1 hour', attempt = 1 WHERE queue = 'c'; PREPARE TRANSACTION 'x'},
    '0A000', 'nor one made by a plain UPDATE');
is(sql(q{SELECT count(*) FROM pg_prepared_xacts}), '0', 'nothing was prepared');
is(sql(q{SELECT count(*) FROM ratchet.job WHERE queue = 'c' AND state = 'pending'}), '2', 'and nothing claimed');

sql("BEGIN; SAVEPOINT s; $claim; ROLLBACK TO s; SELECT ratchet.enqueue('more', queue => 'c'); PREPARE TRANSACTION 'savepoint'");
sql(q{COMMIT PREPARED 'savepoint'});
is(sql(q{SELECT count(*) FROM ratchet.job WHERE queue = 'c' AND state = 'pending'}), '3', 'a rolled-back claim does not matter');
sql(q{BEGIN; SELECT ratchet.complete(id, token, strict => true) FROM ratchet.claim('c', 'w'); PREPARE TRANSACTION 'finished'});
sql(q{COMMIT PREPARED 'finished'});
is(sql(q{SELECT string_agg(state::text, ' ' ORDER BY state) FROM ratchet.job WHERE queue = 'c'}), 'pending pending succeeded', 'nor one that is finished again');
# The session goes on after a refusal.
$node->psql('postgres', "BEGIN; $claim; PREPARE TRANSACTION 'x'; BEGIN; SELECT ratchet.enqueue('later', queue => 'later'); PREPARE TRANSACTION 'later'; COMMIT PREPARED 'later'",
    on_error_stop => 0);
is(sql(q{SELECT kind FROM ratchet.claim('later', 'w')}), 'later', 'a session can prepare something else after a refusal');

done_testing();
