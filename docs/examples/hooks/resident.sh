#!/bin/sh
# A resident hook in plain sh: refuses commands that contain `git push --force`. It starts no process for a
# request.
#
# A shell cannot parse JSON. This is safe only because it needs no field's value: every request begins with
# {"id":NUMBER, and the rest is searched as text. That finds the words anywhere, even in a file that is
# being written, and does not find them if the JSON escapes one of their characters. For anything more, use
# jq or the example in Python. For the same reason this hook makes no calls: it would have to distinguish
# their answers from requests.

if [ "$1" = hook ]; then
    echo '{"protocol":2,"mode":"resident","events":["before_tool_call"],"description":"refuses forced pushes"}'
    exit 0
fi

while IFS= read -r line; do
    id=${line#'{"id":'}
    id=${id%%,*}
    case $line in
        *'"tool_name":"bash"'*'git push --force'*)
            echo '{"id":'"$id"',"result":{"blocked":true,"reason":"Forced pushes are not allowed here."}}' ;;
        *)
            echo '{"id":'"$id"',"result":{}}' ;;
    esac
done
