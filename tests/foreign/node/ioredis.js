// A program of ioredis: `node ioredis.js tour|consume|hang|rescue URL [NAME]`. It prints lines of JSON.
'use strict';
const { Redis } = require('ioredis');

const [what, url, name = 'c'] = process.argv.slice(2);
const say = (value) => process.stdout.write(JSON.stringify(value) + '\n');
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

function connect() {
  const client = new Redis(url, { retryStrategy: () => 20, maxRetriesPerRequest: null });
  client.on('error', () => {}); // it connects again, and sends again what was not answered
  return client;
}

async function group(client) {
  try {
    await client.xgroup('CREATE', 'jobs', 'g', '0', 'MKSTREAM');
  } catch (error) {
    if (!error.message.startsWith('BUSYGROUP')) throw error;
  }
}

// What was delivered to this name and not acknowledged first, then new messages.
async function consume(acknowledge) {
  const client = connect();
  const reader = client.duplicate();
  reader.on('error', () => {});
  await group(client);
  let from = '0';
  reader.on('ready', () => (from = '0')); // a reply may have been lost with the connection
  say('ready');
  for (;;) {
    const reply = await reader.xreadgroup('GROUP', 'g', name, 'COUNT', 10, 'BLOCK', 0, 'STREAMS', 'jobs', from);
    const messages = reply[0][1];
    if (from === '0' && messages.length === 0) from = '>';
    for (const [id, fields] of messages) {
      if (acknowledge) await client.xack('jobs', 'g', id);
      say({ name, n: Number(fields[1]) });
    }
    if (!acknowledge && messages.length) await sleep(1e9);
  }
}

async function rescue() {
  const client = connect();
  let start = '0-0';
  do {
    const [next, messages] = await client.xautoclaim('jobs', 'g', name, 0, start, 'COUNT', 3);
    for (const [id, fields] of messages) {
      say({ name, n: Number(fields[1]) });
      await client.xack('jobs', 'g', id);
    }
    start = next;
  } while (start !== '0-0');
  await client.quit();
}

// The same commands as in node-redis.js, as ioredis has them.
async function tour() {
  const c = connect();
  const show = async (promise) => {
    try {
      say(await promise);
    } catch (error) {
      say({ error: error.message });
    }
  };
  for (const id of ['1-1', '1-2', '2-0', '3-7']) await show(c.xadd('s', id, 'id', id, 'of', 's'));
  await show(c.xadd('s', '1-1', 'late', 'x'));
  await show(c.xadd('absent', 'NOMKSTREAM', '*', 'a', 'b'));
  await show(c.xadd('s', 'MAXLEN', '=', 4, '4-*', 'a', 'b'));
  await show(c.xlen('s'));
  await show(c.xrange('s', '-', '+'));
  await show(c.xrange('s', '(1-2', '3', 'COUNT', 1));
  await show(c.xrevrange('s', '+', '-', 'COUNT', 2));
  await show(c.xrangeBuffer('s', '2', '2').then((rows) => rows.map((row) => row[1].map((part) => part.toString('hex')))));
  await show(c.xread('COUNT', 1, 'STREAMS', 's', 'absent', '2', '0'));
  await show(c.xread('BLOCK', 1, 'STREAMS', 's', '$'));
  await show(c.xgroup('CREATE', 's', 'g', '0'));
  await show(c.xgroup('CREATE', 's', 'g', '0'));
  await show(c.xgroup('CREATE', 'made', 'g', '$', 'MKSTREAM', 'ENTRIESREAD', 1));
  await show(c.xgroup('CREATECONSUMER', 's', 'g', 'idle'));
  await show(c.xreadgroup('GROUP', 'g', 'a', 'COUNT', 2, 'STREAMS', 's', '>'));
  await show(c.xreadgroup('GROUP', 'g', 'b', 'COUNT', 1, 'NOACK', 'STREAMS', 's', 'made', '>', '>'));
  await show(c.xreadgroup('GROUP', 'g', 'b', 'BLOCK', 1, 'STREAMS', 's', '>'));
  await show(c.xreadgroup('GROUP', 'g', 'a', 'STREAMS', 's', '0'));
  await show(c.xreadgroup('GROUP', 'none', 'a', 'STREAMS', 's', '0'));
  await show(c.xpending('s', 'g'));
  await show(c.xpending('s', 'g', '-', '+', 10, 'a').then((rows) => rows.map((row) => [row[0], row[1], row[3]])));
  await show(c.xclaim('s', 'g', 'c', 0, '1-2', '2-0', 'RETRYCOUNT', 5));
  await show(c.xclaim('s', 'g', 'd', 0, '1-2', '9-9', 'JUSTID'));
  await show(c.xdel('s', '2-0', '9-9'));
  await show(c.xautoclaim('s', 'g', 'e', 0, '0', 'COUNT', 1));
  await show(c.xautoclaim('s', 'g', 'e', 0, '0'));
  await show(c.xack('s', 'g', '1-2', '9-9'));
  await show(c.xinfo('GROUPS', 's'));
  await show(c.xsetid('s', '10-0', 'ENTRIESADDED', 20, 'MAXDELETEDID', '5-0'));
  await show(c.xgroup('SETID', 's', 'g', '$'));
  await show(c.xtrim('s', 'MINID', '=', '4'));
  await show(c.xgroup('DELCONSUMER', 's', 'g', 'e'));
  await show(c.xgroup('DESTROY', 's', 'g'));
  await show(c.multi().xadd('s', '11-0', 'n', '1').xrange('s', '-', '+').xlen('s').exec());
  await show(c.pipeline().xadd('s', '12-0', 'n', '2').xlen('s').xread('STREAMS', 's', '11').exec());
  await c.set('string', 'x');
  await show(c.xrange('string', '-', '+'));
  await c.quit();
}

const parts = { tour, rescue, consume: () => consume(true), hang: () => consume(false) };
parts[what]().catch((error) => {
  process.stderr.write(`${error.stack}\n`);
  process.exit(1);
});
