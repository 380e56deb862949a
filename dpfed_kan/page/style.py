"""The style of the page: readable on paper, on a telephone, and without color."""

from dpfed_kan.page.elements import Markup

STYLE = Markup("""
:root { color-scheme: light; --ink: #1b1b1b; --quiet: #4d4d4d; --rule: #c4c4c4; --link: #0b4f8a;
  --red: #9c1111; --amber: #7a4100; }
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { margin: 0; background: #fff; color: var(--ink);
  font: 1rem/1.55 system-ui, "Segoe UI", "Helvetica Neue", Arial, "DejaVu Sans", sans-serif; }
header, nav, main, footer { max-width: 60rem; margin: 0 auto; padding: 0 1rem; }
body { overflow-wrap: break-word; hyphens: auto; }
code, figcaption, h1, dt { overflow-wrap: anywhere; hyphens: none; }
main { counter-reset: section; }
section { counter-increment: section; padding-top: .5rem; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 1.5rem 0 .25rem; }
h2 { font-size: 1.25rem; margin: 2rem 0 .5rem; border-top: 2px solid var(--ink);
  padding-top: .6rem; }
h2::before { content: counter(section) ". "; }
h3 { font-size: 1.05rem; margin: 1.4rem 0 .4rem; }
p, ul, dl { margin: .5rem 0; }
a { color: var(--link); }
a:focus-visible, summary:focus-visible, .scroll:focus-visible { outline: 3px solid var(--link);
  outline-offset: 2px; }
.skip { position: absolute; left: -100vw; background: #fff; padding: .5rem 1rem; }
.skip:focus { left: 0; top: 0; }
.headline { border: 2px solid var(--ink); padding: .75rem 1rem; margin: 1rem 0; }
.headline p { margin: .3rem 0; }
.epsilon { font-size: 2rem; font-weight: 700; line-height: 1.2; }
.epsilon .delta { font-size: 1.25rem; font-weight: 400; }
.epsilon.none { color: var(--red); }
.full { color: var(--quiet); font-size: .9rem; }
.banner { background: var(--red); color: #fff; padding: .6rem 1rem; margin: .75rem 0; }
.warning { border-left: .4rem solid var(--amber); background: #fdf3e4; padding: .5rem .8rem; }
.mark { color: var(--amber); }
nav ol { columns: 2; column-gap: 2rem; padding-left: 1.6rem; }
nav li { break-inside: avoid; padding: .1rem 0; }
dt { font-weight: 600; margin-top: .5rem; }
dd { margin: 0 0 0 1rem; }
code { font-size: .85rem; font-family: ui-monospace, "DejaVu Sans Mono", monospace; }
.scroll { overflow-x: auto; margin: 1rem 0; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding-bottom: .35rem; }
caption span { display: inline-block; position: sticky; left: 0; max-width: calc(100vw - 2rem); }
th, td { text-align: left; vertical-align: top; padding: .35rem .75rem .35rem 0;
  border-bottom: 1px solid var(--rule); }
thead th { border-bottom: 2px solid var(--ink); vertical-align: bottom; }
tbody th { font-weight: 500; }
th:last-child, td:last-child { padding-right: 0; }
.number { text-align: right; }
.together { white-space: nowrap; }
figure { margin: 1rem 0; max-width: 30rem; break-inside: avoid; }
figcaption { font-size: .9rem; color: var(--quiet); }
svg { display: block; width: 100%; height: auto; }
svg text { font: 12px system-ui, "Helvetica Neue", Arial, "DejaVu Sans", sans-serif;
  fill: var(--ink); }
svg .name { font-weight: 600; }
.grid { stroke: #dcdcdc; }
.axis { stroke: #5a5a5a; }
.pair, .small { display: grid; gap: 0 1.5rem; grid-template-columns: repeat(2, minmax(0, 1fr)); }
details { margin: .5rem 0 1rem; }
summary { cursor: pointer; color: var(--link); }
footer { margin: 2.5rem auto 2rem; color: var(--quiet); font-size: .9rem; }
@media (max-width: 40rem) {
  .pair, .small, nav ol { grid-template-columns: minmax(0, 1fr); columns: 1; }
  table { font-size: .875rem; }
  th, td { padding-right: .5rem; }
  h1 { font-size: 1.4rem; }
  .wide .together { white-space: normal; }
  .wide thead th { overflow-wrap: anywhere; }
  .wide table { font-size: .8rem; }
}
@media print {
  nav, .skip { display: none; }
  body { font-size: 10pt; }
  header, main, footer { max-width: none; padding: 0; }
  .scroll { overflow: visible; break-inside: avoid; }
  h2, h3, caption { break-after: avoid; }
  tr, figure { break-inside: avoid; }
  .banner { border: 2pt solid var(--red); color: var(--red); background: #fff; }
  a { color: inherit; text-decoration: none; }
}
""")
