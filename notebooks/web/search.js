// Lists the sections that have all words of ?q=…: INDEX holds [address, page, heading, words] of each.
const MOST = 60, BEFORE = 60, AFTER = 160; // results; characters shown around the first word
const query = new URLSearchParams(location.search).get("q") ?? "";
const words = query.toLowerCase().split(/\s+/).filter(Boolean);

function count(text, word) {
  return text.split(word).length - 1;
}

// A word in a section's heading counts as ten in its text; 0 if a word is missing.
function score([, page, heading, text]) {
  const title = heading.toLowerCase(), rest = `${page} ${text}`.toLowerCase();
  const each = words.map((word) => 10 * count(title, word) + count(rest, word));
  return each.includes(0) ? 0 : each.reduce((sum, n) => sum + n, 0);
}

function element(name, text, ...children) {
  const node = document.createElement(name);
  node.textContent = text;
  node.append(...children);
  return node;
}

// The words around the first one that was looked for, which is marked.
function excerpt(text) {
  const at = Math.max(0, text.toLowerCase().indexOf(words[0]));
  const start = text.lastIndexOf(" ", Math.max(0, at - BEFORE)) + 1;
  const mark = text.toLowerCase().startsWith(words[0], at) ? text.slice(at, at + words[0].length) : "";
  const before = (start ? "… " : "") + text.slice(start, at), last = text.length > at + AFTER ? " …" : "";
  return element("p", before, element("mark", mark), text.slice(at + mark.length, at + AFTER) + last);
}

function result([address, page, heading, text]) {
  const link = element("a", heading && heading !== page ? `${page}: ${heading}` : page);
  link.href = address;
  return element("li", "", link, excerpt(text));
}

if (words.length) {
  document.querySelector("input[name=q]").value = query;
  document.title = `${query} · ${document.title}`;
  const scored = INDEX.map((entry) => [score(entry), entry]).filter(([points]) => points);
  scored.sort(([a], [b]) => b - a);
  document.querySelector("#summary").textContent =
    `${scored.length} ${scored.length === 1 ? "section has" : "sections have"} ${words.join(" and ")}` +
    (scored.length > MOST ? `; the first ${MOST}:` : scored.length ? ":" : ".");
  document.querySelector("#results").append(...scored.slice(0, MOST).map(([, entry]) => result(entry)));
}
