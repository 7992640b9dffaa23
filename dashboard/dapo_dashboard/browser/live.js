// Waits until the server says that the page is out of date, and has it drawn again.

const waiting = new WeakMap();

/** Follows the page that `data` names; Streamlit calls it again whenever it draws the component. */
export function follow({ parentElement, data, setTriggerValue }) {
  const known = waiting.get(parentElement);
  if (known?.path === data.path) known.look = () => setTriggerValue("look", true);
  else {
    known?.stop();
    waiting.set(parentElement, wait(data, () => setTriggerValue("look", true)));
  }
  return () => { if (!parentElement.isConnected) waiting.get(parentElement)?.stop(); };
}

function wait({ path, seconds }, look) {
  const address = new URL(path, document.baseURI);
  address.protocol = address.protocol.replace("http", "ws");
  const state = { path, look };
  let socket = null;
  let timer = null;
  const open = () => {
    socket = new WebSocket(address);
    socket.onmessage = () => state.look();
    // Without a connection, the page is looked at as often as the server would.
    socket.onclose = () => { timer = setTimeout(() => { state.look(); open(); }, 1000 * seconds); };
  };
  state.stop = () => {
    clearTimeout(timer);
    socket.onclose = null;
    socket.close();
  };
  open();
  return state;
}
