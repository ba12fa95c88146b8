//! Template text made ready for the engine.

/// Rewrites `{% generation %}` and `{% endgeneration %}`, which mark the assistant's text for training, as a block that
/// only opens a scope, and line breaks as Jinja reads them (`\r\n` and `\r` count as `\n`).
///
/// Lines keep their numbers. Comments, raw blocks and text in quotes are left alone.
pub(super) fn prepare(source: &str) -> String {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let mut out = String::with_capacity(source.len());
    let mut rest = source.as_str();
    let mut raw = false;
    while let Some(at) = rest.find('{') {
        let (text, tag) = rest.split_at(at);
        out.push_str(text);
        let end = match tag.as_bytes().get(1) {
            Some(b'#') if !raw => tag.find("#}").map(|end| end + 2),
            Some(b'{') if !raw => tag_end(tag, "}}"),
            Some(b'%') => {
                // In a raw block only its end counts, and quotes mean nothing.
                let end = if raw { tag.find("%}").map(|end| end + 2) } else { tag_end(tag, "%}") };
                let name = end.and_then(|end| tag_name(&tag[..end]));
                match name {
                    Some((_, "endraw")) if raw => {
                        raw = false;
                        end
                    }
                    _ if raw => Some(1),
                    Some((_, "raw")) => {
                        raw = true;
                        // The engine drops a line break after the tag, which Jinja keeps.
                        if let Some(end) = end.filter(|&end| tag[..end].ends_with("%}") && !tag[..end].ends_with("-%}"))
                            && tag[end..].starts_with('\n')
                        {
                            out.push_str(&tag[..end]);
                            out.push('\n');
                            rest = &tag[end..];
                            continue;
                        }
                        end
                    }
                    Some((start, word @ ("generation" | "endgeneration"))) => {
                        out.push_str(&tag[..start]);
                        out.push_str(if word == "generation" { "with" } else { "endwith" });
                        rest = &tag[start + word.len()..];
                        continue;
                    }
                    _ => end,
                }
            }
            _ => Some(1),
        };
        // A tag without an end is the engine's to report.
        let end = end.unwrap_or(tag.len());
        out.push_str(&tag[..end]);
        rest = &tag[end..];
    }
    out.push_str(rest);
    out
}

/// Length of a tag up to and with its closing mark, quotes heeded.
fn tag_end(tag: &str, close: &str) -> Option<usize> {
    let bytes = tag.as_bytes();
    let mut quote = None;
    let mut at = 2;
    while at < bytes.len() {
        match (quote, bytes[at]) {
            (Some(_), b'\\') => at += 1,
            (Some(open), b) if b == open => quote = None,
            (None, b @ (b'\'' | b'"')) => quote = Some(b),
            (None, _) if bytes[at..].starts_with(close.as_bytes()) => return Some(at + close.len()),
            _ => {}
        }
        at += 1;
    }
    None
}

/// The first word of a `{% %}` tag and where it starts.
fn tag_name(tag: &str) -> Option<(usize, &str)> {
    let inner = tag.get(2..)?;
    let inner = inner.strip_prefix(['-', '+']).unwrap_or(inner).trim_start();
    let start = tag.len() - inner.len();
    let length = inner.bytes().take_while(|b| b.is_ascii_alphanumeric() || *b == b'_').count();
    (length > 0).then(|| (start, &inner[..length]))
}
