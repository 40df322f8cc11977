// A program of node-redis: `node node-redis.js tour|consume|hang|rescue URL [NAME] [RESP]`. It prints lines of JSON.
'use strict';
const { createClient } = require('redis');

const [what, url, name = 'c', resp = '2'] = process.argv.slice(2);
const say = (value) => process.stdout.write(JSON.stringify(value) + '\n');
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

async function connect() {
  const client = createClient({ url, RESP: Number(resp), socket: { reconnectStrategy: () => 20 } });
  client.on('error', () => {}); // the loops below go on
  await client.connect();
  return client;
}

async function group(client) {
  try {
    await client.xGroupCreate('jobs', 'g', '0', { MKSTREAM: true });
  } catch (error) {
    if (!error.message.startsWith('BUSYGROUP')) throw error;
  }
}

// What was delivered to this name and not acknowledged first, then new messages; begins again after an error.
async function consume(acknowledge) {
  const client = await connect();
  const reader = client.duplicate();
  reader.on('error', () => {});
  await reader.connect();
  await group(client);
  say('ready');
  let from = '0';
  for (;;) {
    try {
      const reply = await reader.xReadGroup('g', name, { key: 'jobs', id: from }, { COUNT: 10, BLOCK: 0 });
      const messages = Array.isArray(reply) ? reply[0].messages : reply.jobs;
      if (from === '0' && messages.length === 0) from = '>';
      for (const { id, message } of messages) {
        if (acknowledge) await client.xAck('jobs', 'g', id);
        say({ name, n: Number(message.n) });
      }
      if (!acknowledge && messages.length) await sleep(1e9);
    } catch (error) {
      from = '0';
      await sleep(10);
    }
  }
}

async function rescue() {
  const client = await connect();
  let start = '0-0';
  do {
    const { nextId, messages } = await client.xAutoClaim('jobs', 'g', name, 0, start, { COUNT: 3 });
    for (const { id, message } of messages) {
      say({ name, n: Number(message.n) });
      await client.xAck('jobs', 'g', id);
    }
    start = nextId;
  } while (start !== '0-0');
  await client.close();
}

// Each command that node-redis has for streams; what it answers, or the error.
async function tour() {
  const c = await connect();
  const show = async (promise) => {
    try {
      const reply = await promise;
      say(reply === undefined ? null : reply);
    } catch (error) {
      say({ error: error.message });
    }
  };
  for (const id of ['1-1', '1-2', '2-0', '3-7']) await show(c.xAdd('s', id, { id, of: 's' }));
  await show(c.xAdd('s', '1-1', { late: 'x' }));
  await show(c.xAddNoMkStream('absent', '*', { a: 'b' }));
  await show(c.xAdd('s', '4-*', { a: 'b' }, { TRIM: { strategy: 'MAXLEN', strategyModifier: '=', threshold: 4 } }));
  await show(c.xLen('s'));
  await show(c.xRange('s', '-', '+'));
  await show(c.xRange('s', '(1-2', '3', { COUNT: 1 }));
  await show(c.xRevRange('s', '+', '-', { COUNT: 2 }));
  await show(c.xRange('s', 'bad', '+'));
  await show(c.xRead([{ key: 's', id: '2' }, { key: 'absent', id: '0' }], { COUNT: 1 }));
  await show(c.xRead({ key: 's', id: '$' }, { BLOCK: 1 }));
  await show(c.xGroupCreate('s', 'g', '0'));
  await show(c.xGroupCreate('s', 'g', '0'));
  await show(c.xGroupCreate('made', 'g', '$', { MKSTREAM: true, ENTRIESREAD: 1 }));
  await show(c.xGroupCreateConsumer('s', 'g', 'idle'));
  await show(c.xReadGroup('g', 'a', { key: 's', id: '>' }, { COUNT: 2 }));
  await show(c.xReadGroup('g', 'b', [{ key: 's', id: '>' }, { key: 'made', id: '>' }], { COUNT: 1, NOACK: true }));
  await show(c.xReadGroup('g', 'b', { key: 's', id: '>' }, { BLOCK: 1 }));
  await show(c.xReadGroup('g', 'a', { key: 's', id: '0' }));
  await show(c.xReadGroup('g', 'c', { key: 's', id: '0' }));
  await show(c.xReadGroup('none', 'c', { key: 's', id: '>' }));
  await show(c.xPending('s', 'g'));
  await show(c.xPendingRange('s', 'g', '-', '+', 10).then((rows) => rows.map((row) => ({ ...row, millisecondsSinceLastDelivery: 0 }))));
  await show(c.xClaim('s', 'g', 'c', 0, ['1-2', '2-0'], { RETRYCOUNT: 5 }));
  await show(c.xClaimJustId('s', 'g', 'd', 0, ['1-2', '9-9']));
  await show(c.xDel('s', ['2-0', '9-9']));
  await show(c.xAutoClaim('s', 'g', 'e', 0, '0', { COUNT: 1 }));
  await show(c.xAutoClaim('s', 'g', 'e', 0, '0'));
  await show(c.xAutoClaimJustId('s', 'g', 'e', 0, '0'));
  await show(c.xAck('s', 'g', ['1-2', '9-9']));
  const masked = { 'radix-tree-keys': 0, 'radix-tree-nodes': 0 };
  const newer = ['idmp-duration', 'idmp-maxsize', 'pids-tracked', 'iids-tracked', 'iids-added', 'iids-duplicates'];
  await show(c.xInfoStream('s').then((facts) => {
    const shown = { ...facts, ...masked };
    for (const field of newer) delete shown[field];
    return shown;
  }));
  await show(c.xInfoGroups('s'));
  await show(c.xInfoConsumers('s', 'g').then((rows) => rows.map((row) => ({ ...row, idle: 0, inactive: 0 }))));
  await show(c.xSetId('s', '10-0', { ENTRIESADDED: 20, MAXDELETEDID: '5-0' }));
  await show(c.xGroupSetId('s', 'g', '$'));
  await show(c.xInfoGroups('s'));
  await show(c.xTrim('s', 'MINID', '4', { strategyModifier: '=' }));
  await show(c.xGroupDelConsumer('s', 'g', 'e'));
  await show(c.xGroupDestroy('s', 'g'));
  await show(c.multi().xAdd('s', '11-0', { n: '1' }).xRange('s', '-', '+').xLen('s').exec());
  await show(c.xLen('s'));
  await c.set('string', 'x');
  await show(c.xRange('string', '-', '+'));
  await c.close();
}

const parts = { tour, rescue, consume: () => consume(true), hang: () => consume(false) };
parts[what]().catch((error) => {
  process.stderr.write(`${error.stack}\n`);
  process.exit(1);
});
