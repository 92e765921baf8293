/*-------------------------------------------------------------------------
 *
 * sanitize.c
 *	  Error text as it is stored: without what looks like a secret, and clipped.
 *
 * A worker's error message is written where more people read than may see a
 * password. What is redacted: connection URLs with credentials, JDBC URLs,
 * values after words like "password" or "token", and e-mail addresses unless
 * ratchet.redact_emails is off.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_collation.h"
#include "mb/pg_wchar.h"
#include "utils/builtins.h"

#include "ratchet.h"

/* Matching is not linear: look at no more than this before the final clip. */
#define LOOK_AT_MOST (8 * RATCHET_ERROR_MAX)

#define REDACTED "[REDACTED]"

static const struct
{
	const char *pattern;
	const char *replacement;
	bool		email;
}			rules[] =
{
	{"jdbc:[^[:space:]\"'<>]+", "jdbc:" REDACTED, false},
	{"([a-z][a-z0-9+.-]*://)[^[:space:]/\"']+@", "\\1" REDACTED "@", false},
	{"((password|passwd|pwd|secret|token|apikey|api_key|access_key|private_key|credential)s?[\"']?[[:space:]]*[=:][[:space:]]*)"
	"(\"[^\"]*\"|'[^']*'|[^[:space:],;&}]+)", "\\1" REDACTED, false},
	{"[[:alnum:]._%+-]+@[[:alnum:]-]+([.][[:alnum:]-]+)+", REDACTED, true},
};

static text *clip(text *message, int limit);

text *
ratchet_sanitize(text *message)
{
	text	   *result = clip(message, LOOK_AT_MOST);

	for (int i = 0; i < lengthof(rules); i++)
	{
		if (rules[i].email && !ratchet_redact_emails)
			continue;
		result = DatumGetTextPP(DirectFunctionCall4Coll(textregexreplace, C_COLLATION_OID,
														PointerGetDatum(result),
														CStringGetTextDatum(rules[i].pattern),
														CStringGetTextDatum(rules[i].replacement),
														CStringGetTextDatum("gi")));
	}
	return clip(result, RATCHET_ERROR_MAX);
}

/* Cut to so many bytes, between two characters. */
static text *
clip(text *message, int limit)
{
	int			len = VARSIZE_ANY_EXHDR(message);

	if (len <= limit)
		return message;
	return cstring_to_text_with_len(VARDATA_ANY(message),
									pg_mbcliplen(VARDATA_ANY(message), len, limit));
}
