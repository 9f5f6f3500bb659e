// CommonJS: `require` where the runtime can load modules so, and `import()` everywhere.

const [how, base, name] = process.argv.slice(2);
const load = async (entry) => (how === 'require' ? require(entry) : import(entry));

load('@encke/client').then(async ({ Client }) => {
  console.log(JSON.stringify(await new Client({ base }).create(name)));
});
