// A bundler in one line: the module's text, and a call of it.
const text = require('node:fs').readFileSync(require.resolve('./greet.js'), 'utf8');
process.stdout.write(`${text}\nconsole.log(exports.greet(process.argv[2]));\n`);
