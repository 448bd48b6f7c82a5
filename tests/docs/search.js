// Ask the search of the built site, which runs in the browser: node search.js SITE QUERY... prints the places it finds.
const fs = require("fs"), path = require("path"), vm = require("vm");
const [site, ...queries] = process.argv.slice(2);
const folder = path.join(site, "assets/javascripts/workers");
const code = fs.readFileSync(path.join(folder, fs.readdirSync(folder).find((name) => name.endsWith(".js"))), "utf8");
const index = JSON.parse(fs.readFileSync(path.join(site, "search/search_index.json")));
const answers = [];
let ask;
const worker = {
  addEventListener: (kind, listener) => { ask = listener; },
  postMessage: (message) => answers.push(message),
  importScripts: () => {},
  location: {}, console, setTimeout, performance,
};
worker.self = worker;
vm.createContext(worker);
vm.runInContext(code, worker);
(async () => {
  await ask({ data: { type: 0, data: { ...index, options: { suggest: true } } } });
  const found = {};
  for (const query of queries) {
    answers.length = 0;
    await ask({ data: { type: 2, data: query } });
    found[query] = answers[0].data.items.map((item) => item[0].location);
  }
  console.log(JSON.stringify(found));
})();
