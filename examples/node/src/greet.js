exports.greet = (name) => {
  if (!name) throw new TypeError('a name is needed');
  return `Hello, ${name}!`;
};
