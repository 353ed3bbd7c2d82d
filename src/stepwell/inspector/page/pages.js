// All pages, in the order of the navigation. A page is a module with an object:
//   name, title: its address and its name; "of" is the page that it belongs to in the navigation instead of its own place
//   go: the key that opens it after g
//   source: what it reads, api/SOURCE
//   show(app, found, params, width): its elements
//   filters(params, found): the fields of its filter, if it is a list; "finds" is the noun of what it finds
//   forms: its edits by name, see edits.js
import { audit } from "./audit.js";
import { flows } from "./flows.js";
import { messages } from "./messages.js";
import { overview } from "./overview.js";
import { queue, queues } from "./queues.js";
import { record, records } from "./records.js";
import { run } from "./run.js";
import { runs } from "./runs.js";
import { turn, turns } from "./turns.js";

export const PAGES = [overview, runs, run, queues, queue, flows, records, record, turns, turn, messages, audit];
export const FORMS = Object.assign({}, ...PAGES.map((page) => page.forms));
