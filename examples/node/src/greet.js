exports.greet = (name) => {
  if (!name) throw new TypeError('missing name');
  return `Hello, ${name}!`;
};
