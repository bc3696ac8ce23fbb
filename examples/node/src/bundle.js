// A minimal bundler: prints the source of the module and a call of its function.
const text = require('node:fs').readFileSync(require.resolve('./greet.js'), 'utf8');
process.stdout.write(`${text}\nconsole.log(exports.greet(process.argv[2]));\n`);
